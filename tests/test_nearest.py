import pytest

import swath
from swath.nearest import suggestion


def test_the_nearest_name_is_suggested():
    assert suggestion("frame_per_batch", ["frames", "total_frames", "frames_per_batch"]) == (
        "; did you mean 'frames_per_batch'?"
    )


def test_nothing_is_suggested_for_a_name_that_is_like_none():
    assert suggestion("zzyzx", ["frames", "seed"]) == ""
    assert suggestion("frames", []) == ""


@pytest.mark.parametrize(
    ("name", "word", "meant"),
    [
        ("Collector", "num_envs", "envs_per_worker"),
        ("MultiSyncCollector", "num_collectors", "num_workers"),
        ("RayCollector", "num_workers", "num_collectors"),
        ("Evaluator", "envs_per_worker", "num_envs"),
    ],
)
def test_the_name_of_another_class_for_the_same_number_is_pointed_out(name, word, meant):
    with pytest.raises(TypeError, match=rf"argument '{word}'; did you mean '{meant}'\?$"):
        getattr(swath, name)(**{word: 2})


MISSPELT = {
    "Collector": "frame_per_batch",
    "MultiSyncCollector": "frame_per_batch",
    "MultiAsyncCollector": "frame_per_batch",
    "RayCollector": "frame_per_batch",
    "Evaluator": "frame_per_batch",
    "RolloutWorker": "worker_idnex",
    "WorkerSet": "num_workrs",
}
MEANT = {"frame_per_batch": "frames_per_batch", "worker_idnex": "worker_index", "num_workrs": "num_workers"}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_keyword_is_told_by_what_may_have_been_meant_before_any_that_is_missing(name):
    word = MISSPELT[name]
    with pytest.raises(TypeError) as caught:
        getattr(swath, name)(**{word: 8})
    meant = f"{name} got an unexpected keyword argument {word!r}; did you mean {MEANT[word]!r}?"
    assert str(caught.value) == meant


@pytest.mark.parametrize("name", MISSPELT)
def test_a_keyword_like_none_is_named_without_a_guess(name):
    with pytest.raises(TypeError) as caught:
        getattr(swath, name)(zzyzx=8)
    assert str(caught.value) == f"{name} got an unexpected keyword argument 'zzyzx'"


def test_a_class_of_the_users_is_called_by_its_own_name():
    class Mine(swath.MultiSyncCollector):
        """With nothing of its own."""

    with pytest.raises(TypeError, match=r"^Mine got an unexpected keyword argument 'sede'; did you mean 'seed'\?$"):
        Mine("CartPole-v1", frames_per_batch=8, sede=0)


def test_what_is_missing_or_too_much_is_told_as_python_does():
    with pytest.raises(TypeError, match="RolloutWorker takes at most 0 positional arguments, got 1"):
        swath.RolloutWorker(3)
    with pytest.raises(TypeError, match="Evaluator: missing a required argument: 'env'"):
        swath.Evaluator()
