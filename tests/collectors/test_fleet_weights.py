"""Weights of many workers: whom they are for, what waits, which models can be updated, where weights come from."""

import threading

import pytest
import torch
from collector_toys import PATH, PLACES, Always, TwoNets, acted, counting_env, multi, weights

from swath import Collector, NoWeightSyncScheme, SharedMemWeightSyncScheme
from toys import DEADLINE_S

pytestmark = pytest.mark.usefixtures("fork_server")  # workers are forked at once


TO_ALL = {
    "by worker": {"weights": {0: Always(2), 1: weights(2)}},
    "worker_ids=": {"weights": weights(2), "worker_ids": [0, 1]},
    "a device": {"weights": weights(2), "worker_ids": "cpu"},
    "devices": {"weights": weights(2), "worker_ids": [torch.device("cpu")]},
}


@pytest.mark.parametrize("arguments", TO_ALL.values(), ids=TO_ALL)
def test_workers_are_named_by_index_or_device(arguments):
    with multi(Always(1)) as collector:
        collector.update_policy_weights_(**arguments)
        assert acted(collector) == [(2, 1), (2, 1)]


@pytest.mark.parametrize("backend", PLACES)
def test_waiting_returns_when_the_workers_run_the_version_and_parameters_stay_parameters(backend):
    with multi(policy_factory=lambda: Always(1), backend=backend) as collector:
        collector.update_policy_weights_(weights(2), wait=True, timeout_s=DEADLINE_S)
        assert collector.get_distant_attr("policy.weight")[1] == 2
        assert acted(collector) == [(2, 1), (2, 1)]
        weight = collector.getattr_policy("weight")
        assert isinstance(weight, torch.nn.Parameter)
        assert weight.requires_grad


# ---- schemes


@pytest.mark.parametrize("backend", PLACES)
def test_an_id_can_be_a_path_on_the_worker_and_several_models_are_one_version(backend):
    linear = {"weight": torch.full((1, 1), 5.0), "bias": torch.full((1,), 5.0)}
    with multi(TwoNets(), backend=backend, weight_sync_schemes={PATH: SharedMemWeightSyncScheme()}) as collector:
        with pytest.raises(RuntimeError, match=r"no weights of 'policy.nets\[1\]' to publish"):
            collector.update_policy_weights_(model_id=PATH)
        with pytest.raises(KeyError, match=r"known are \['policy', 'policy.nets\[1\]'\]"):
            collector.update_policy_weights_(linear, model_id="x")
        collector.update_policy_weights_(linear, model_id=PATH)
        assert collector.getattr_policy("nets[1].bias").item() == 5
        policy = {**TwoNets().state_dict(), **weights(2)}
        with pytest.raises(KeyError, match="nothing was changed"):
            collector.update_policy_weights_(weights_dict={"policy": policy, PATH: weights(2)})
        assert collector.policy_version == 1, "all or nothing"
        collector.update_policy_weights_(weights_dict={"policy": policy, PATH: linear})
        assert acted(collector) == [(2, 2), (2, 2)]


def test_nothing_is_published_for_a_scheme_that_sends_nothing():
    with multi(Always(1), weight_sync_schemes={"policy": NoWeightSyncScheme(), "x": NoWeightSyncScheme()}) as collector:
        collector.update_policy_weights_(weights(2))
        collector.update_policy_weights_({0: weights(2)})
        collector.update_policy_weights_(weights_dict={"policy": weights(2), "x": weights(2)}, wait=True)
        assert collector.publish_weights(weights(2)) == 0
        assert acted(collector) == [(1, 0), (1, 0)]
        assert collector.increment_version() == 1


def test_a_collectors_scheme_sends_nothing_by_hand():
    scheme = SharedMemWeightSyncScheme()
    with multi(Always(1), weight_sync_schemes={"policy": scheme}) as collector:
        with pytest.raises(NotImplementedError, match=r"call update_policy_weights_\(\) of the collector"):
            scheme.send(weights(2))
        assert collector.policy_version == 0


def test_a_schemes_source_comes_before_the_collectors_policy():
    source, scheme = Always(2), SharedMemWeightSyncScheme()
    scheme.init_on_sender(model_id="policy", model=source)
    with multi(Always(1), weight_sync_schemes={"policy": scheme}) as collector:
        assert acted(collector) == [(1, 0), (1, 0)]
        collector.update_policy_weights_()
        assert acted(collector) == [(2, 1), (2, 1)]


def test_a_scheme_can_map_what_its_collector_publishes():
    class Negates(SharedMemWeightSyncScheme):
        def prepare_weights(self, weights, model_id, strategy, context=None):
            assert context is collector
            return {"weight": 2 - strategy.extract_weights(weights)["weight"]}

    collector = multi(Always(1), weight_sync_schemes={"policy": Negates()})
    with collector:
        collector.update_policy_weights_(weights(2))
        assert acted(collector) == [(0, 1), (0, 1)]


def test_with_a_factory_the_policy_is_only_the_source_of_weights():
    lock = threading.Lock()  # cannot be pickled, as the policy need not be

    class Unpicklable(Always):
        def __init__(self):
            super().__init__(2)
            self.lock = lock

    policy = Unpicklable()
    schemes = {"policy": SharedMemWeightSyncScheme()}
    with multi(policy, policy_factory=lambda: Always(0), backend="process", weight_sync_schemes=schemes) as collector:
        assert acted(collector) == [(2, 0), (2, 0)], "its weights are in the workers from construction"
        with torch.no_grad():
            policy.weight.fill_(1)
        assert acted(collector) == [(2, 0), (2, 0)]
        collector.update_policy_weights_()
        assert acted(collector) == [(1, 1), (1, 1)]


def test_a_policy_and_a_factory_need_an_explicit_scheme():
    with pytest.raises(TypeError, match="policy and policy_factory are both given"):
        multi(Always(1), policy_factory=lambda: Always(0))
    with pytest.raises(TypeError, match="policy and policy_factory are both given"):
        multi(Always(1), policy_factory=lambda: Always(0), weight_sync_schemes={})


def test_a_collector_in_this_process_takes_no_sending_schemes():
    with pytest.raises(ValueError, match="one worker in this process, which acts with the policy itself"):
        Collector(
            counting_env, Always(1), frames_per_batch=4, weight_sync_schemes={"policy": SharedMemWeightSyncScheme()}
        )
