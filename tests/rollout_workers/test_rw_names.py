"""The public names of the package."""

import inspect
import subprocess
import sys

import pytest

import swath
from swath import rollout_workers

NAMES = [name for name, value in vars(rollout_workers).items() if name[0] != "_" and not inspect.ismodule(value)]
PUBLIC = [name for name in NAMES if name not in ("annotations", "TYPE_CHECKING")]


OWN = {"RandomPolicy"}  # for collectors it is another class


def test_what_swath_hands_on_too_is_the_same_object():
    shared = set(swath.__all__) & set(PUBLIC) - OWN
    assert "EnvContext" in shared
    assert all(getattr(swath, name) is getattr(rollout_workers, name) for name in shared)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'swath.rollout_workers' has no attribute 'EnvContex'$"):
        rollout_workers.EnvContex  # noqa: B018


def test_to_import_the_package_loads_no_ray():
    code = "import sys, swath.rollout_workers; print('ray' in sys.modules, 'torchrl' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False False\n"
    )
