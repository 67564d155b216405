"""The methods of `RayCollector` that others lack or have in another form; in another place than actors, mostly."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from collector_toys import IDS, VERSION, WIDE, Always, drawn, made_by, weights

from swath.collectors import ray_collector as face
from swath.errors import Closed, PlacementFailed
from swath.testing import Counting, CountingEnvs, EnvBroke, Fault, check_lives
from toys import first_in_time

# ---- add_collectors


def test_further_actors_get_their_share_from_the_next_batch(build):
    collector = build(policy=Always(1), seed=3)
    collector.update_policy_weights_(weights(2))
    assert collector.next().shape == (2, 2, 6)
    assert collector.add_collectors([CountingEnvs(WIDE, first=4), CountingEnvs(WIDE, first=6)], 2) is None
    batches = drawn(collector, 3)
    assert {batch.shape for batch in batches} == {(4, 2, 3)}
    assert made_by(batches[0]) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (batches[0]["action"].unique().tolist(), batches[0][VERSION].unique().tolist()) == ([2], [1])
    assert (collector.num_collectors, collector.stats()["workers"]) == (4, 4)
    assert collector.frames_per_batch_worker(3) == 6
    check_lives(batches, WIDE, gaps=True)


def test_added_workers_are_asked_at_once_in_asynchronous_collection(build):
    collector = build(sync=False)
    collector.next()
    collector.add_collectors(CountingEnvs(WIDE, first=4), 2)
    batches = drawn(collector, 8)
    assert {batch.shape for batch in batches} == {(2, 6)}
    assert {worker for batch in batches for worker in made_by(batch)} == {0, 1, 2}
    check_lives(batches, WIDE, gaps=True)


def test_added_workers_keep_their_own_policy_until_the_next_update(build):
    collector = build(policy=Always(1))
    collector.update_policy_weights_(weights(2))
    collector.add_collectors(CountingEnvs(WIDE, first=4), 2, Always(7))
    assert [row["action"].unique().tolist() for row in collector.next()] == [[2], [2], [7]]
    collector.update_policy_weights_(weights(3))
    assert collector.next()["action"].unique().tolist() == [3]


def test_keywords_and_resources_are_for_all_of_them_or_for_each(build):
    collector = build(collector_kwargs={"max_frames_per_traj": 5})
    sources = [CountingEnvs(WIDE, first=first) for first in (4, 6)]
    collector.add_collectors(
        sources, 2, None, [{"max_frames_per_traj": 3}, {}], [{"num_cpus": 3}, {"num_cpus": 2, "memory": 7}]
    )
    jobs = collector.collection.jobs
    assert [jobs.requests[worker].threads for worker in range(4)] == [1, 1, 3, 2]
    assert jobs.requests[3].resources == {"num_cpus": 2, "memory": 7}
    longest = torch.stack([batch["next", "step_count"] for batch in drawn(collector, 4)]).amax((0, 2, 3, 4))
    assert longest.tolist() == [5, 5, 3, 5]


@pytest.mark.parametrize(("config", "cpus"), [({}, 2), ({"num_cpus": 1}, 1)])
def test_a_worker_has_a_thread_and_by_default_a_cpu_per_env_process(build, fork_server, config, cpus):
    requests = build(env_processes=2, remote_configs=config).collection.jobs.requests
    assert [(request.resources, request.threads) for request in requests.values()] == [(config, cpus)] * 2


class WithMore(Always):
    """Has a weight more."""

    def __init__(self):
        super().__init__()
        self.other = torch.nn.Parameter(torch.zeros(2))


UNFIT = {
    "shares that are not whole": ({"n": 3}, ValueError, "frames_per_batch=24 cannot be shared by 5 workers"),
    "other entries": (
        {"counting": Counting("multi_binary", WIDE.action_space)},
        ValueError,
        "worker 2 cannot be joined with worker 0",
    ),
    "other weights": ({"policy": WithMore()}, ValueError, "would take other weights than worker 0"),
    "unknown keywords": ({"collector_kwargs": {"frames": 3}}, TypeError, "no keyword of Collector"),
    "what all workers share": ({"collector_kwargs": {"seed": 3}}, ValueError, "'seed', which is the same for all"),
    "what is decided": ({"collector_kwargs": {"total_frames": 3}}, ValueError, "RayCollector decides"),
    "lists of other lengths": ({"remote_configs": [{}, {}]}, ValueError, "2 entries for 1 workers"),
    "an env that fails": ({"faults": {0: [Fault("raise_at_build")]}}, EnvBroke, "could not be built"),
}


@pytest.mark.parametrize(("how", "error", "message"), UNFIT.values(), ids=UNFIT)
def test_what_does_not_fit_is_refused_and_nothing_is_added(build, how, error, message):
    collector = build(policy=Always(1))
    collector.next()
    options = dict(how)
    counting, faults = options.pop("counting", WIDE), options.pop("faults", None)
    sources = [CountingEnvs(counting, faults) for _ in range(options.pop("n", 1))]
    with pytest.raises(error, match=message):
        collector.add_collectors(sources, 2, **options)
    assert collector.num_collectors == collector.stats()["workers"] == 2
    assert collector.next().shape == (2, 2, 6)


def test_no_worker_is_added_to_one_part_of_a_larger_collector(build):
    collector = build()
    collector.worker_idx = 1
    with pytest.raises(RuntimeError, match="ids of the collector with the next index; build it with all its workers"):
        collector.add_collectors(CountingEnvs(WIDE))
    assert collector.num_collectors == 2


def test_workers_that_are_not_ready_in_time_are_not_added(build, gate):
    collector = first_in_time(PlacementFailed, build, "thread", placement_timeout_s=1.0)

    def late():
        gate.go_through()
        return CountingEnvs(WIDE)()

    with pytest.raises(PlacementFailed):
        collector.add_collectors(late)
    gate.open()
    assert collector.num_collectors == 2
    assert collector.next().shape == (2, 2, 6)


# ---- state


def test_the_state_is_a_list_with_the_counters_of_all_in_each_entry(build):
    collector = build(policy=Always(3), seed=5, total_frames=1000)
    collector.update_policy_weights_(weights(4))
    batches = drawn(collector, 2)
    saved = collector.state_dict()
    assert [type(saved), len(saved)] == [list, 2]
    for worker, part in enumerate(saved):
        assert list(part) == [
            "policy_state_dict", "env_state_dict", "frames", "iter", "traj_pool", "policy_version", "seed",
            "static_seed", "life", "coordinator",
        ]  # fmt: skip
        assert (part["frames"], part["iter"], part["policy_version"], part["seed"]) == (24, 1, 1, 5)
        assert part["policy_state_dict"]["weight"].item() == 4
        counters = part["coordinator"]
        assert (counters["frames"], counters["iter"], counters["policy_version"], counters["seed"]) == (48, 1, 1, 5)
        assert int(counters["traj_pool"]["traj_id"]) > max(int(batch[IDS].max()) for batch in batches)
        assert int(part["traj_pool"]["traj_id"]) >> 47 == worker


def test_one_entry_counts_for_all_and_others_numbers_are_refused(build):
    saved, other = build(policy=Always(3)), build(policy=Always(1))
    drawn(saved, 2)
    state = saved.state_dict()
    other.load_state_dict(state[0])
    assert other.stats()["frames"] == 48
    batch = other.next()
    assert batch["action"].unique().tolist() == [3]
    assert (batch[IDS] >> 32 & 0x7FFF).unique().tolist() == [1]
    with pytest.raises(ValueError, match="the state is of 3 workers, this collector has 2"):
        other.load_state_dict([*state, state[0]])
    lacking = [{name: value for name, value in part.items() if name != "frames"} for part in state]
    with pytest.raises(KeyError, match="lacks"):
        other.load_state_dict(lacking)
    other.load_state_dict(lacking, strict=False)
    with pytest.raises(TypeError, match="the state is of type int"):
        other.load_state_dict(3)


def test_a_list_without_coordinator_sums_the_frames(build):
    collector = build(policy=Always(1), total_frames=100)
    collector.load_state_dict(
        [{"policy_state_dict": weights(4), "env_state_dict": {}, "frames": 40, "iter": 3}] * 2, strict=False
    )
    assert collector.stats()["frames"] == 80
    assert [batch["action"].unique().tolist() for batch in collector] == [[4]]


# ---- the rest


def test_shutdown_ends_rays_connection_only_if_asked_to(build, monkeypatch):
    ended = []
    monkeypatch.setattr(face, "import_extra", lambda *_, **__: SimpleNamespace(shutdown=lambda: ended.append(True)))
    build().shutdown()
    asyncio.run(build().async_shutdown())
    assert not ended
    build().shutdown(shutdown_ray=True)
    collector = build()
    asyncio.run(collector.async_shutdown(shutdown_ray=True))
    collector.shutdown()
    assert ended == [True, True]


def test_a_closed_collector_says_so(build):
    collector = build()
    collector.shutdown()
    with pytest.raises(Closed, match="this RayCollector was shut down; build another one"):
        collector.add_collectors("CartPole-v1")
    assert collector.remote_collectors == []
    assert collector.stats("both")["worker_1/state"] == "closed"
    assert "closed" in repr(collector)
