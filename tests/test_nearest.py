"""A keyword that a public class does not take is named, with the one that may have been meant."""

import pytest

import swath

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


@pytest.mark.parametrize(("name", "word", "meant"), KEYWORDS)
def test_a_misspelt_keyword_is_named_before_any_that_is_missing(name, word, meant):
    with pytest.raises(TypeError) as caught:
        getattr(swath, name)(**{word: 8})
    end = "" if meant is None else f"; did you mean {meant!r}?"
    assert str(caught.value) == f"{name} got an unexpected keyword argument {word!r}{end}"


def test_a_class_of_the_users_is_called_by_its_own_name():
    class Mine(swath.MultiSyncCollector):
        """With nothing of its own."""

    with pytest.raises(TypeError, match=r"^Mine got an unexpected keyword argument 'sede'; did you mean 'seed'\?$"):
        Mine("CartPole-v1", frames_per_batch=8, sede=0)


def test_what_is_missing_or_too_much_is_said():
    with pytest.raises(TypeError, match="RolloutWorker takes at most 0 positional arguments, got 1"):
        swath.RolloutWorker(3)
    with pytest.raises(TypeError, match="Evaluator: missing a required argument: 'env'"):
        swath.Evaluator()
