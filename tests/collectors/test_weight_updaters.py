"""Weight updaters: the steps of a push, and the classes that there are."""

import gc
from functools import partial

import pytest
import torch
from collector_toys import EITHER, Always, Recording, acted, make_collector, multi, weights
from tensordict import TensorDict
from torch import nn

from swath import MultiProcessedWeightUpdater, RemoteModuleWeightUpdater, VanillaWeightUpdater, WeightUpdaterBase
from swath.errors import Closed

STEPS = ["get", "map", ("skip", 0), ("sync", 0), ("skip", 1), ("sync", 1), "hook"]


CPU = torch.device("cpu")
PUSHES = {
    "the server's weights": ({}, (), STEPS),
    "passed": ({}, (weights(2),), STEPS[1:]),
    "one is skipped": ({"skipped": (0,)}, (weights(2),), ["map", ("skip", 0), *STEPS[4:]]),
    "without ids": ({"ids": None}, (weights(2),), ["map", ("sync", None), "hook"]),
    "to an index": ({}, (weights(2), 1), ["map", *STEPS[4:]]),
    "to a device": ({}, (weights(2), CPU), ["map", ("skip", CPU), ("sync", CPU), "hook"]),
    "to a device by name": ({}, (weights(2), ["cpu"]), ["map", ("skip", CPU), ("sync", CPU), "hook"]),
    "to no workers": ({}, (weights(2), []), ["map", "hook"]),
}


@pytest.mark.parametrize(("options", "arguments", "steps"), PUSHES.values(), ids=PUSHES)
def test_a_push_goes_through_its_steps_in_order(options, arguments, steps):
    updater = Recording(server=weights(1), **options)
    updater.push_weights(*arguments)
    assert updater.log == steps
    updater(*arguments)
    assert updater.log == steps * 2, "calling it is pushing"


def test_modules_are_mapped_to_their_data_and_other_things_refused():
    mapped = Recording()._maybe_map_weights(nn.Linear(1, 1))
    assert isinstance(mapped, TensorDict)
    assert not mapped["weight"].requires_grad
    for same in (TensorDict(weights(1)), weights(1)):
        assert Recording()._maybe_map_weights(same) is same
    with pytest.raises(TypeError, match="weights are of type int; pass a module"):
        Recording().push_weights(3)


def test_what_a_step_raises_leaves_as_it_is_and_hooks_are_not_called():
    class Fails(Recording):
        def _sync_weights_with_worker(self, *, worker_id=None, server_weights):
            super()._sync_weights_with_worker(worker_id=worker_id, server_weights=server_weights)
            if worker_id == 1:
                raise OSError("the wire broke")

    updater = Fails()
    with multi(Always(1), weight_updater=updater) as collector:
        with pytest.raises(OSError, match="the wire broke"):
            collector.update_policy_weights_(weights(2))
        assert "hook" not in updater.log
        assert collector.policy_version == 0, "a push is published as a whole or not at all"
        assert acted(collector) == [(1, 0), (1, 0)]


def test_hooks_run_in_order_when_the_weights_are_out_and_their_errors_leave():
    updater, versions = Recording(), []

    def raises():
        raise KeyError("hook")

    with multi(Always(1), weight_updater=updater) as collector:
        updater.register_post_hook(lambda: versions.append(collector.policy_version))
        updater.register_post_hook(raises)
        updater.register_post_hook(lambda: versions.append("never"))
        assert len(updater.post_hooks) == 4
        with pytest.raises(KeyError, match="hook"):
            collector.update_policy_weights_(weights(2))
        assert versions == [1]
        assert acted(collector) == [(2, 1), (2, 1)]


class Minimal(WeightUpdaterBase):
    def _sync_weights_with_worker(self, *, worker_id=None, server_weights):
        self.collector.publish_weights(server_weights, worker_ids=worker_id)


def test_what_is_to_be_overridden_says_nothing_by_default():
    updater = Minimal()
    assert updater._get_server_weights() is updater.all_worker_ids() is Minimal.from_policy(Always()) is None
    assert updater.init(1, a=2) is None
    assert updater._skip_update(0) is False
    assert updater.post_hooks == []
    assert updater.collector is updater.collectors is None
    assert updater.increment_version() is None


def test_an_updater_without_weights_of_its_own_pushes_the_collectors():
    policy = Always(1)
    with multi(policy, weight_updater=Minimal) as collector:
        with torch.no_grad():
            policy.weight.fill_(2)
        collector.update_policy_weights_()
        assert acted(collector) == [(2, 1), (2, 1)]
    with multi(policy_factory=Always, weight_updater=Minimal) as collector:
        with pytest.raises(RuntimeError, match="pass weights, or give the collector a policy"):
            collector.update_policy_weights_()
        assert collector.policy_version == 0
    with multi(weight_updater=Minimal) as collector:  # random actions: only the version counts
        collector.update_policy_weights_()
        assert collector.policy_version == 1


GIVEN = {"an instance": Minimal, "a class": lambda: Minimal, "a callable": lambda: partial(Minimal)}


@pytest.mark.parametrize("make", EITHER)
@pytest.mark.parametrize("make_updater", GIVEN.values(), ids=GIVEN)
def test_an_updater_can_be_given_read_removed_and_set_at_any_time(make, make_updater):
    with make(policy=Always(1), weight_updater=make_updater()) as collector:
        assert isinstance(collector.weight_updater, Minimal)
        assert collector.weight_updater.collector is collector
        assert collector.weight_updater.collectors == [collector]
        collector.update_policy_weights_(weights(2))
        assert collector.policy_version == 1
        assert collector.next()["action"].unique().tolist() == [2]
        collector.weight_updater = None
        assert collector.weight_updater is None
        collector.update_policy_weights_(weights(0))
        assert collector.policy_version == 2
        collector.weight_updater = make_updater()
        assert collector.weight_updater.collector is collector


def test_from_policy_of_a_class_is_tried_first():
    class Fits(Minimal):
        policies = []

        @classmethod
        def from_policy(cls, policy):
            cls.policies.append(policy)
            return cls() if len(cls.policies) == 1 else None

    policy = Always(1)
    for _ in range(2):
        with make_collector(policy=policy, weight_updater=Fits) as collector:
            assert isinstance(collector.weight_updater, Fits)
    assert Fits.policies == [policy, policy]


@pytest.mark.parametrize("updater", [3, dict, lambda: 3], ids=["number", "class", "callable"])
def test_a_callable_that_returns_no_updater_is_refused(updater):
    with pytest.raises(TypeError, match="give an instance or subclass of WeightUpdaterBase, or a callable"):
        multi(Always(1), weight_updater=updater)


@pytest.mark.parametrize("make", EITHER)
def test_init_updater_calls_init_and_without_an_updater_does_nothing(make):
    updater = Recording()
    with make(policy=Always(1)) as collector:
        assert collector.init_updater(1) is None
        collector.weight_updater = updater
        collector.init_updater(1, a=2)
    assert updater.log == [("init", (1,), {"a": 2})]


def test_with_an_updater_one_model_is_served():
    with multi(Always(1), weight_updater=Recording()) as collector:
        with pytest.raises(ValueError, match="model_id is given, but the weight updater Recording serves the policy"):
            collector.update_policy_weights_(weights(2), model_id="policy")
        with pytest.raises(ValueError, match="weights_dict is given, but"):
            collector.update_policy_weights_(weights_dict={"policy": weights(2)})
        with pytest.raises(ValueError, match="policy_or_weights and weights are both"):
            collector.update_policy_weights_(weights(2), weights=weights(2))
        with pytest.raises(ValueError, match="is unknown; workers are \\[0, 1\\]"):
            collector.update_policy_weights_(weights(2), worker_ids=7)
        assert collector.policy_version == 0


def test_a_push_is_one_version_for_however_many_workers():
    updater = Recording()
    with multi(Always(1), weight_updater=updater) as collector:
        collector.update_policy_weights_(weights(2))
        assert collector.policy_version == 1
        assert acted(collector) == [(2, 1), (2, 1)]
        collector.update_policy_weights_(weights(0), worker_ids=[1])
        assert acted(collector) == [(2, 1), (0, 2)]
        updater.push_weights(weights(1))
        assert acted(collector) == [(1, 3), (1, 3)], "also when it is called directly"
        with pytest.raises(ValueError, match="publish it without worker_ids"):
            collector.update_policy_weights_({0: weights(0), 1: weights(1)})


def test_a_second_collector_is_refused_while_the_first_lives():
    updater, first = Minimal(), make_collector(policy=Always(1))
    updater.register_collector(first)
    updater.register_collector(first)
    with make_collector(policy=Always(1)) as other:
        with pytest.raises(RuntimeError, match="this Minimal serves another collector"):
            other.weight_updater = updater
        assert updater.collector is first
        assert other.weight_updater is None
        first.shutdown()
        del first
        gc.collect()
        assert updater.collector is updater.collectors is None
        other.weight_updater = updater
        assert updater.collector is other


@pytest.mark.parametrize("make", EITHER)
def test_pushing_after_shutdown_is_closed(make):
    collector = make(policy=Always(1), weight_updater=(updater := Minimal()))
    collector.shutdown()
    with pytest.raises(Closed):
        updater.push_weights(weights(2))


# ---- VanillaWeightUpdater


def test_vanilla_copies_in_place():
    server_weights = TensorDict(weights(1))
    updater, tensor = VanillaWeightUpdater(policy_weights=server_weights), server_weights["weight"]
    updater.push_weights(weights(2))
    assert tensor == 2
    assert updater.push_weights() is None, "nothing passed and no getter: nothing happens"
    VanillaWeightUpdater(weight_getter=lambda: weights(3), policy_weights=server_weights).push_weights()
    assert tensor == 3
    with pytest.raises(KeyError, match="nothing was changed"):
        updater.push_weights({"other": torch.zeros(1)})
    policy = Always(1)
    VanillaWeightUpdater.from_policy(policy).push_weights(weights(2))
    assert policy.weight == 2
    assert VanillaWeightUpdater.from_policy(None) is None


# ---- MultiProcessedWeightUpdater


def test_multi_processed_copies_into_the_entry_of_each_device_or_worker():
    cpu = torch.device("cpu")
    by_device = {cpu: TensorDict(weights(1)), torch.device("meta"): TensorDict(weights(1)).to("meta")}
    updater = MultiProcessedWeightUpdater(get_server_weights=None, policy_weights=by_device)
    assert updater.all_worker_ids() == [cpu, torch.device("meta")]
    updater.push_weights(weights(2), worker_ids="cpu")
    assert by_device[cpu]["weight"] == 2
    updater.push_weights()
    assert by_device[cpu]["weight"] == 2, "without weights and without a source nothing happens"
    by_worker = {0: TensorDict(weights(1)), 1: TensorDict(weights(1))}
    updater = MultiProcessedWeightUpdater(get_server_weights=lambda: weights(0), policy_weights=by_worker)
    updater.push_weights(worker_ids=1)
    assert [entry["weight"].item() for entry in by_worker.values()] == [1, 0]
    with pytest.raises(ValueError, match="worker_ids=2: there are weights for \\[0, 1\\] only"):
        updater.push_weights(worker_ids=2)


@pytest.mark.parametrize("ids", [(torch.device("cpu"),), (0, 1)], ids=["by device", "by worker"])
def test_multi_processed_publishes_to_the_workers_there(ids):
    server_weights = {worker: TensorDict(weights(1)) for worker in ids}
    updater = MultiProcessedWeightUpdater(get_server_weights=lambda: weights(2), policy_weights=server_weights)
    with multi(Always(1), weight_updater=updater) as collector:
        collector.update_policy_weights_()
        assert {entry["weight"].item() for entry in server_weights.values()} == {2.0}
        assert acted(collector) == [(2, 1), (2, 1)]


# ---- RemoteModuleWeightUpdater


def test_remote_module_publishes_what_is_passed_and_insists_on_it():
    with multi(Always(1), weight_updater=RemoteModuleWeightUpdater) as collector:
        with pytest.raises(RuntimeError, match="has no weights of its own: pass weights"):
            collector.update_policy_weights_()
        collector.update_policy_weights_(weights(2))
        assert acted(collector) == [(2, 1), (2, 1)]
        collector.update_policy_weights_(weights(0), worker_ids=0)
        assert acted(collector) == [(0, 2), (2, 1)]
    with pytest.raises(RuntimeError, match="set it as a collector's weight_updater"):
        RemoteModuleWeightUpdater().push_weights(weights(2))
