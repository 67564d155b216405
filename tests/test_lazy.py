"""Packages that load their public names at first use."""

import subprocess
import sys

import pytest

import swath
from swath import testing

PACKAGES = [swath, testing]


def test_to_import_the_packages_loads_nothing_heavy():
    code = "import sys, swath, swath.testing; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "gymnasium", "ray", "pytest"} & set(loaded)


@pytest.mark.parametrize("package", PACKAGES)
def test_all_names_that_are_shown_are_there_and_kept_once_loaded(package):
    assert dir(package) == sorted(package.__all__)
    for name in package.__all__:
        value = getattr(package, name)
        assert vars(package)[name] is value


@pytest.mark.parametrize("package", PACKAGES)
def test_others_are_an_attribute_error_that_says_which_there_are(package):
    with pytest.raises(
        AttributeError, match=f"module '{package.__name__}' has no attribute 'Workr'; public names: "
    ) as no:
        package.Workr  # noqa: B018
    assert no.value.name == "Workr"
    assert not hasattr(package, "__wrapped__")
