"""When collectors with many workers publish weights by themselves."""

import pytest
import torch
from collector_toys import VERSION, Always, Recording, Signalling, acted, counting_env, multi, multi_async, weights
from tensordict import TensorDict

from swath import RemoteModuleWeightUpdater, SharedMemWeightSyncScheme, VanillaWeightUpdater


def learn(policy):
    """Make one step of training: the next number."""
    with torch.no_grad():
        policy.weight.add_(1).remainder_(3)


@pytest.fixture
def interval(build):
    """Build a collector of two workers with RayCollector's argument, in a place that needs no cluster."""

    def make(policy, k, *, workers=2, sync=False, **options):
        options = {"envs_per_worker": None, "frames_per_batch": 4 if sync else 2, "sync": sync, **options}
        return build(sources=[counting_env] * workers, policy=policy, max_weight_update_interval=k, **options)

    return make


def test_synchronous_collection_publishes_before_every_batch_also_the_first():
    policy = Always(0)
    with multi(policy, update_at_each_batch=True) as collector:
        learn(policy)
        for version in (1, 2, 3):
            assert acted(collector) == [(version % 3, version)] * 2
            learn(policy)


def test_asynchronous_collection_publishes_when_the_user_draws_again_and_who_is_asked_next_gets_it():
    policy = Always(0)
    with multi_async(policy, update_at_each_batch=True, prefetch=0) as collector:
        assert acted(collector) == [(0, 0)]
        assert collector.policy_version == 0
        learn(policy)
        assert acted(collector) == [(0, 0)], "what is in flight keeps its version"
        assert collector.policy_version == 1
        assert acted(collector) == [(1, 1)]


def test_an_interval_of_k_lets_no_worker_make_more_than_k_fragments_on_one_version(interval):
    policy = Always(0)
    with interval(policy, 2, workers=1) as collector:
        versions = []
        for _ in range(7):
            versions += [version for _, version in acted(collector)]
            learn(policy)
        assert versions == [0, 0, 1, 1, 2, 2, 3]


def test_an_interval_of_0_is_each_batch_and_the_flag_decides(interval):
    for options in ({"k": 0}, {"k": 5, "update_after_each_batch": True}):
        policy = Always(0)
        with interval(policy, workers=1, prefetch=0, **options) as collector:
            assert [acted(collector)[0][1] for _ in range(3)] == [0, 1, 2]


def test_in_background_mode_the_same_holds_for_every_batch_that_is_written():
    policy, buffer = Always(0), Signalling(permits=4)
    with multi(policy, replay_buffer=buffer, update_at_each_batch=True) as collector:
        collector.start()
        buffer.wait_for(4)  # two shares of a batch are two writes
        buffer.permit(10**6)
        buffer.wait_for(6)
        versions = [part[VERSION].unique().tolist() for part in buffer.written[:6]]
        assert versions == [[1], [1], [2], [2], [3], [3]]


WITHOUT_SOURCE = {
    "a factory alone": dict,
    "an updater that insists on weights": lambda: {"weight_updater": RemoteModuleWeightUpdater},
    "an updater without a getter": lambda: {
        "weight_updater": VanillaWeightUpdater(policy_weights=TensorDict(weights(1)))
    },
    "a scheme without weights": lambda: {"weight_sync_schemes": {"policy": SharedMemWeightSyncScheme()}},
}


@pytest.mark.parametrize("options", WITHOUT_SOURCE.values(), ids=WITHOUT_SOURCE)
def test_automatic_updates_without_a_source_are_refused_at_construction(options):
    with pytest.raises(ValueError, match="automatic updates of weights have no source"):
        multi(policy_factory=Always, update_at_each_batch=True, **options())


def scheme_with_weights():
    scheme = SharedMemWeightSyncScheme()
    scheme.init_on_sender(weights=weights(2))
    return scheme


WITH_SOURCE = {
    "an updater's": lambda: {"weight_updater": Recording(server=weights(2))},
    "a scheme's": lambda: {"weight_sync_schemes": {"policy": scheme_with_weights()}},
    "a policy and a factory": lambda: {
        "policy": Always(2),
        "weight_sync_schemes": {"policy": SharedMemWeightSyncScheme()},
    },
}


@pytest.mark.parametrize("options", WITH_SOURCE.values(), ids=WITH_SOURCE)
def test_any_source_of_weights_will_do(options):
    with multi(policy_factory=Always, update_at_each_batch=True, **options()) as collector:
        assert acted(collector) == [(2, 1), (2, 1)]
