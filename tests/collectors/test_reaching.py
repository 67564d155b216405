"""What a collector says of itself, and reaching inside it."""

import json

import pytest
from collector_toys import KINDS, Always, Memory, collector, fleet

import swath
from swath import BaseCollector, Collector
from swath.collectors import postprocs, utils

STATS = {
    "frames", "batches", "requested_frames_per_batch", "policy_version", "policy_version_min", "restarts",
    "workers_lost", "late", "fragments_lost", "env_errors", "frames_dropped", "batches_dropped", "batches_overdue",
    "frames_discarded", "episodes", "fps", "seconds", "seconds_waiting", "staleness", "running",
}  # fmt: skip
"""Keys that are always there."""


OF_MANY = {"workers", "workers_alive", "worker_frames"}
"""Keys of stats that are there with many workers."""


def test_names_are_where_users_look_for_them():
    import swath.collectors as collectors

    updaters = "VanillaWeightUpdater MultiProcessedWeightUpdater RayWeightUpdater RemoteModuleWeightUpdater"
    names = f"Collector BaseCollector RandomPolicy ExplorationType split_trajectories MultiStep GAE {updaters}"
    for name in names.split():
        assert getattr(swath, name) is getattr(collectors, name)
    assert collectors.DataCollectorBase is swath.DataCollectorBase is BaseCollector
    assert swath.LocalWeightsUpdaterBase is swath.RemoteWeightsUpdaterBase is collectors.WeightUpdaterBase
    assert issubclass(Collector, BaseCollector)
    assert utils.split_trajectories is swath.split_trajectories
    assert (postprocs.MultiStep, postprocs.GAE) == (swath.MultiStep, swath.GAE)


@pytest.mark.parametrize("kind", [None, *KINDS], ids=str)
def test_stats_are_numbers_and_say_what_happened(kind):
    options = {"total_frames": 60, "frames_per_batch": 20, "max_frames_per_traj": 3}
    made = collector(**options) if kind is None else fleet(kind, backend="inline", **options)
    always = STATS | {"total_frames", "completed"} | (set() if kind is None else OF_MANY)
    promised = {"requested_frames_per_batch": 20, "total_frames": 60}
    if kind is not None:
        promised |= {"workers": 2, "workers_alive": 2}
    before = made.stats()
    assert before == dict.fromkeys(always, 0) | promised
    batches = list(made)
    made.increment_version()
    stats = made.stats()
    assert json.loads(json.dumps(stats)) == stats
    assert set(stats) == always | {"episode_return", "episode_length"}
    assert (stats["frames"], stats["batches"], stats["completed"]) == (60, len(batches), True)
    oldest = 1 if kind is None else 0  # workers take the newest with their next request
    assert (stats["policy_version"], stats["policy_version_min"]) == (1, oldest)
    ended = [int(batch["next", "done"].sum()) for batch in batches]
    assert stats["episodes"] == sum(ended) > 0
    assert 1 <= stats["episode_length"] <= 3
    assert stats["fps"] > 0
    assert stats["seconds"] >= stats["seconds_waiting"] > 0
    made.shutdown()
    assert made.stats()["frames"] == 60, "works after shutdown"


def test_views_of_the_workers():
    with collector(worker_idx=3) as made:
        made.next()
        one = made.stats(workers="per_worker")
        assert one == {
            "worker_3/frames": 10,
            "worker_3/life": 0,
            "worker_3/state": "up",
            "worker_3/busy": False,
            "worker_3/staleness": 0,
            "worker_3/policy_version": 0,
        }
        both = made.stats(workers="both", timeout=0.0)
        assert both.keys() == made.stats().keys() | one.keys()
        with pytest.raises(ValueError, match="workers must be one of 'aggregate', 'per_worker', 'both', got 'all'"):
            made.stats("all")


@pytest.mark.parametrize(("make", "who"), [(collector, "Collector 1 worker"), (fleet, "MultiSyncCollector 2 workers")])
def test_repr_is_a_status_line(make, who):
    made = make(frames_per_batch=1500)
    idle = f"<{who}: {made.num_workers} idle"
    assert repr(made) == f"{idle}; 0 frames, version 0>"
    made.next(), made.next()
    made.increment_version()
    assert repr(made) == f"{idle}; 3.0k frames, version 1>"
    made.collection.counters.frames = 1_234_567
    assert repr(made) == f"{idle}; 1.2M frames, version 1>"
    made.shutdown()
    assert repr(made) == f"<{who}: closed; 1.2M frames, version 1>"


def test_cascade_execute_follows_paths_and_calls():
    with collector(policy=Always(2), replay_buffer=Memory()) as made:
        assert made.cascade_execute("get_policy_version") == 0
        assert made.cascade_execute("policy.weight") == 2
        assert made.cascade_execute("env[1].mark.env") == 1
        assert made.cascade_execute("env[-1].counting.script.plan", 0, 0).length == 3
        assert made.cascade_execute("stats", workers="per_worker").keys() == {*made.stats("per_worker")}
        assert made.cascade_execute("state_dict")["frames"] == 0
        assert made.get_distant_attr("policy.seen[0]") == 0
        with pytest.raises(ValueError, match=r"'policy\.weight' is of type Parameter, which takes no arguments"):
            made.cascade_execute("policy.weight", 1)
        with pytest.raises(AttributeError, match=r"'wait' of the path 'policy\.wait' is missing on Always"):
            made.cascade_execute("policy.wait")
        with pytest.raises(AttributeError, match=r"7 of the path 'env\[7\]' is missing on list, whose items are"):
            made.get_distant_attr("env[7]")


@pytest.mark.parametrize(
    "path", ["", "policy..weight", ".policy", "policy.", "env[", "env[1", "1", "a b", "env[x]", "f()"]
)
def test_what_is_no_path_is_never_evaluated(path):
    with collector() as made, pytest.raises(ValueError, match="path"):
        made.get_distant_attr(path)


def test_map_fn_calls_once_per_entry():
    with collector() as made:
        assert made.map_fn("get_policy_version") == [0]
        assert made.map_fn("publish_weights", [({},), ({},)]) == [1, 2]
        assert made.map_fn("set_seed", [(1,), (2,)], [{"static_seed": True}, {"static_seed": True}]) == [1, 2]
        with pytest.raises(ValueError, match="same length"):
            made.map_fn("set_seed", [(1,)], [{}, {}])


def test_attributes_of_env_policy_and_buffer():
    buffer = Memory()
    with collector(policy=Always(2), replay_buffer=buffer) as made:
        assert made.getattr_env("mark.env") == 0
        assert made.getattr_policy("weight") == 2
        assert made.getattr_rb("written") is buffer.written
        with pytest.raises(AttributeError, match="missing"):
            made.getattr_policy("bias")
