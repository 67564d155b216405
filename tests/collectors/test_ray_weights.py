"""Weights on Ray: the updater of its actors, and schemes."""

import copy

import pytest
from collector_toys import Always, acted, counting_env, multi, multi_async, weights
from tensordict import TensorDict

import ray_cluster
from swath import NoWeightSyncScheme, RayWeightSyncScheme, RayWeightUpdater
from swath.errors import Closed

N_FRAMES = 2
SCHEME = RayWeightSyncScheme()


@pytest.fixture(scope="module")
def ray():
    return ray_cluster.up()


@pytest.fixture(scope="module")
def shared(ray):
    """Yield a collector for tests that do not change its workers."""
    schemes = {"policy": SCHEME}
    options = {"num_collectors": 2, "frames_per_batch": 2 * N_FRAMES, "sync": True, "weight_sync_schemes": schemes}
    collector = ray_cluster.collector(counting_env, Always(1), **options)
    yield collector
    collector.shutdown()


@pytest.fixture
def collector(shared):
    yield shared
    shared.weight_updater = None


def test_the_ids_are_the_actors_and_an_interval_below_0_is_0():
    updater = RayWeightUpdater(TensorDict(weights(1)), [object()] * 3, max_interval=-3)
    assert updater.all_worker_ids() == [0, 1, 2]
    assert updater.max_interval == 0


def test_without_a_collector_a_push_is_refused():
    with pytest.raises(RuntimeError, match="set it as weight_updater of the RayCollector"):
        RayWeightUpdater(TensorDict(weights(1)), [object()]).push_weights()


@pytest.mark.parametrize("form", [Always, weights, lambda value: TensorDict(weights(value))])
def test_a_snapshot_or_weights_of_any_form_are_published_for_workers_that_are_named(form):
    updater = RayWeightUpdater(TensorDict(weights(2)), [])
    snapshot = updater._get_server_weights()
    assert updater._maybe_map_weights(snapshot) is snapshot
    with multi(Always(1), weight_updater=updater) as collector:
        updater._sync_weights_with_worker(0, snapshot)
        updater.push_weights(form(0), worker_ids=[1])
        assert acted(collector) == [(2, 1), (0, 2)]
        with pytest.raises(ValueError, match="worker_ids=2 is unknown"):
            updater.push_weights(worker_ids=2)


def test_actors_of_another_collector_are_refused():
    updater = RayWeightUpdater(TensorDict(weights(1)), [object()])
    with pytest.raises(ValueError, match="1 actors that are no workers of this collector"):
        multi(Always(1), weight_updater=updater)


def test_a_push_through_a_collector_is_one_version_on_its_channel():
    updater = RayWeightUpdater(server := TensorDict(weights(0)), [])
    with multi(Always(1), weight_updater=updater) as collector:
        server["weight"].fill_(2)
        assert updater.all_worker_ids() == [0, 1]
        collector.update_policy_weights_()
        assert acted(collector) == [(2, 1), (2, 1)]
        collector.update_policy_weights_(weights(0), worker_ids=1)
        collector.update_policy_weights_(Always(1), worker_ids=0)
        assert acted(collector) == [(1, 3), (0, 2)]
    with pytest.raises(Closed):
        updater.push_weights()


def test_with_a_collector_the_interval_counts_the_batches_that_a_worker_made():
    updater = RayWeightUpdater(TensorDict(weights(2)), [], max_interval=1)
    with multi_async(Always(1), workers=1, prefetch=0, weight_updater=updater) as collector:
        versions = []
        for _ in range(6):
            versions.append(acted(collector)[0][1])
            collector.update_policy_weights_()
        assert versions == [0, 0, 1, 1, 2, 2]


def test_a_reborn_worker_is_never_skipped():
    updater = RayWeightUpdater(TensorDict(weights(2)), [], max_interval=10)
    with multi(Always(1), weight_updater=updater) as collector:
        acted(collector)
        assert [updater._skip_update(worker) for worker in (0, 1)] == [True, True]
        fleet = collector.collection.group.fleet
        fleet.replace(fleet.handle(1).name, RuntimeError("killed by a test"))
        acted(collector)
        assert [updater._skip_update(worker) for worker in (0, 1)] == [True, False]


def test_the_actors_of_its_collector_get_what_is_pushed(collector):
    collector.weight_updater = RayWeightUpdater(TensorDict(weights(2)), collector.remote_collectors)
    collector.update_policy_weights_()
    assert [action for action, _ in acted(collector)] == [2, 2]


def test_handles_answer_what_is_public_and_nothing_else(collector, ray):
    first, second = collector.remote_collectors
    assert collector.remote_collectors is not collector.remote_collectors
    before = collector.stats()["frames"]
    batch = ray.get(second.next.remote())
    assert batch.shape == (N_FRAMES,)
    assert collector.stats()["frames"] == before, "it is not delivered here"
    weight = ray.get(first.get_distant_attr.remote("policy.weight"))
    assert ray.get(first.cascade_execute.remote("policy.weight.item")) == weight
    assert ray.get(first.map_fn.remote("getattr_policy", [("weight",)] * 2)) == [weight] * 2
    saved = ray.get(second.state_dict.remote())
    assert list(saved)[:3] == ["policy_state_dict", "env_state_dict", "frames"]
    assert ray.get(second.load_state_dict.remote(saved)) is None
    assert ray.get(second.stats.remote())["life"] == saved["life"] + 1
    assert ray.get(second.set_seed.remote(3, static_seed=True)) == 3
    for method in (first.update_policy_weights_, first.receive_weights):
        with pytest.raises(RuntimeError, match="a worker takes weights from its collector alone"):
            ray.get(method.remote(weights(2)))
    assert callable(first.shutdown.remote)
    assert not any(hasattr(first, name) for name in ("collect", "control", "__len__", "__bool__"))


def test_an_actor_takes_schemes_of_the_collector_that_built_it_and_no_others(collector, ray):
    actor = collector.remote_collectors[0]
    ray.get(actor.register_scheme_receiver.remote({"policy": copy.copy(SCHEME)}))
    ray.get(actor.register_scheme_receiver.remote({"policy": NoWeightSyncScheme()}))
    collector.update_policy_weights_(weights(2))
    assert [action for action, _ in acted(collector)] == [2, 2]
    with pytest.raises(RuntimeError, match=r"pass weights to update_policy_weights_\(\) of that collector"):
        ray.get(actor.register_scheme_receiver.remote({"policy": RayWeightSyncScheme()}))
