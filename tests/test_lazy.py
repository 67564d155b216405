"""Packages that load their public names at first use."""

import subprocess
import sys

import pytest

import swath
from swath import testing
from swath.extras import import_extra

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


def test_a_broken_package_is_not_taken_for_a_missing_one(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        import_extra("broken_extra", extra="x", purpose="to test")


KEYWORDS = [
    ("Collector", "frame_per_batch", "frames_per_batch"),
    ("MultiSyncCollector", "frame_per_batch", "frames_per_batch"),
    ("RayCollector", "frame_per_batch", "frames_per_batch"),
    ("Evaluator", "num_trajectoris", "num_trajectories"),
    ("RolloutWorker", "worker_idnex", "worker_index"),
    ("WorkerSet", "num_workrs", "num_workers"),
    # other classes' names for the same number
    ("Collector", "num_envs", "envs_per_worker"),
    ("RayCollector", "num_workers", "num_collectors"),
    ("Evaluator", "envs_per_worker", "num_envs"),
    ("Collector", "zzyzx", None),
]


@pytest.mark.parametrize(("name", "word", "suggestion"), KEYWORDS)
def test_a_misspelt_keyword_is_named_before_any_that_is_missing(name, word, suggestion):
    with pytest.raises(TypeError) as caught:
        getattr(swath, name)(**{word: 8})
    end = "" if suggestion is None else f"; did you mean {suggestion!r}?"
    assert str(caught.value) == f"{name} got an unexpected keyword argument {word!r}{end}"


def test_a_class_of_the_users_is_called_by_its_own_name():
    class Mine(swath.MultiSyncCollector):
        """A class without changes."""

    with pytest.raises(TypeError, match=r"^Mine got an unexpected keyword argument 'sede'; did you mean 'seed'\?$"):
        Mine("CartPole-v1", frames_per_batch=8, sede=0)


def test_what_is_missing_or_too_much_is_said():
    with pytest.raises(TypeError, match="RolloutWorker takes at most 0 positional arguments, got 1"):
        swath.RolloutWorker(3)
    with pytest.raises(TypeError, match="Evaluator: missing a required argument: 'env'"):
        swath.Evaluator()
