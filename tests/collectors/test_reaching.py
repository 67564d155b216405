"""What a collector says of itself, and reaching inside it."""

import json

import pytest
from collector_toys import KINDS, Always, Memory, fleet, make_collector

import swath
from swath import BaseCollector, Collector
from swath.collectors import postprocs, utils

STATS = {
    "frames", "batches", "requested_frames_per_batch", "policy_version", "policy_version_min", "restarts",
    "workers_lost", "late", "fragments_lost", "env_errors", "frames_dropped", "batches_dropped", "batches_overdue",
    "frames_discarded", "episodes", "fps", "seconds", "seconds_waiting", "staleness", "running",
}  # fmt: skip
"""Keys of stats of every collector."""


OF_MANY = {"workers", "workers_alive", "worker_frames"}
"""Further keys of stats with many workers."""


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
    collector = make_collector(**options) if kind is None else fleet(kind, backend="inline", **options)
    always = STATS | {"total_frames", "completed"} | (set() if kind is None else OF_MANY)
    promised = {"requested_frames_per_batch": 20, "total_frames": 60}
    if kind is not None:
        promised |= {"workers": 2, "workers_alive": 2}
    before = collector.stats()
    assert before == dict.fromkeys(always, 0) | promised
    batches = list(collector)
    collector.increment_version()
    stats = collector.stats()
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
    collector.shutdown()
    assert collector.stats()["frames"] == 60, "works after shutdown"


def test_views_of_the_workers():
    with make_collector(worker_idx=3) as collector:
        collector.next()
        per_worker = collector.stats(workers="per_worker")
        assert per_worker == {
            "worker_3/frames": 10,
            "worker_3/life": 0,
            "worker_3/state": "up",
            "worker_3/busy": False,
            "worker_3/staleness": 0,
            "worker_3/policy_version": 0,
        }
        both = collector.stats(workers="both", timeout=0.0)
        assert both.keys() == collector.stats().keys() | per_worker.keys()
        with pytest.raises(ValueError, match="workers must be one of 'aggregate', 'per_worker', 'both', got 'all'"):
            collector.stats("all")


@pytest.mark.parametrize(
    ("make", "title"), [(make_collector, "Collector 1 worker"), (fleet, "MultiSyncCollector 2 workers")]
)
def test_repr_is_a_status_line(make, title):
    collector = make(frames_per_batch=1500)
    idle = f"<{title}: {collector.num_workers} idle"
    assert repr(collector) == f"{idle}; 0 frames, version 0>"
    collector.next(), collector.next()
    collector.increment_version()
    assert repr(collector) == f"{idle}; 3.0k frames, version 1>"
    collector.collection.counters.frames = 1_234_567
    assert repr(collector) == f"{idle}; 1.2M frames, version 1>"
    collector.shutdown()
    assert repr(collector) == f"<{title}: closed; 1.2M frames, version 1>"


def test_cascade_execute_follows_paths_and_calls():
    with make_collector(policy=Always(2), replay_buffer=Memory()) as collector:
        assert collector.cascade_execute("get_policy_version") == 0
        assert collector.cascade_execute("policy.weight") == 2
        assert collector.cascade_execute("env[1].mark.env") == 1
        assert collector.cascade_execute("env[-1].counting.script.plan", 0, 0).length == 3
        assert collector.cascade_execute("stats", workers="per_worker").keys() == {*collector.stats("per_worker")}
        assert collector.cascade_execute("state_dict")["frames"] == 0
        assert collector.get_distant_attr("policy.seen[0]") == 0
        with pytest.raises(ValueError, match=r"'policy\.weight' is of type Parameter, which takes no arguments"):
            collector.cascade_execute("policy.weight", 1)
        with pytest.raises(AttributeError, match=r"'wait' of the path 'policy\.wait' is missing on Always"):
            collector.cascade_execute("policy.wait")
        with pytest.raises(AttributeError, match=r"7 of the path 'env\[7\]' is missing on list, whose items are"):
            collector.get_distant_attr("env[7]")


@pytest.mark.parametrize(
    "path", ["", "policy..weight", ".policy", "policy.", "env[", "env[1", "1", "a b", "env[x]", "f()"]
)
def test_text_that_is_no_path_is_never_evaluated(path):
    with make_collector() as collector, pytest.raises(ValueError, match="path"):
        collector.get_distant_attr(path)


def test_map_fn_calls_once_per_entry():
    with make_collector() as collector:
        assert collector.map_fn("get_policy_version") == [0]
        assert collector.map_fn("publish_weights", [({},), ({},)]) == [1, 2]
        assert collector.map_fn("set_seed", [(1,), (2,)], [{"static_seed": True}, {"static_seed": True}]) == [1, 2]
        with pytest.raises(ValueError, match="same length"):
            collector.map_fn("set_seed", [(1,)], [{}, {}])


def test_attributes_of_env_policy_and_buffer():
    buffer = Memory()
    with make_collector(policy=Always(2), replay_buffer=buffer) as collector:
        assert collector.getattr_env("mark.env") == 0
        assert collector.getattr_policy("weight") == 2
        assert collector.getattr_rb("written") is buffer.written
        with pytest.raises(AttributeError, match="missing"):
            collector.getattr_policy("bias")
