"""How weights come into a collector, which version is stamped, and when they act; in this process and with workers."""

import copy
from itertools import product

import pytest
import torch
from collector_toys import (
    EITHER,
    VERSION,
    Always,
    Held,
    InThread,
    WithValue,
    acted,
    make_collector,
    multi,
    shown,
    weights,
)
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from swath.errors import NoEffectWarning, WorkerLate


def two():
    return weights(2)


FORMS = {  # what weights may be is tested with `plan`
    "a module": lambda: {"policy_or_weights": Always(2)},
    "a dict": lambda: {"policy_or_weights": two()},
    "weights=": lambda: {"weights": TensorDict(two())},
    "policy=": lambda: {"policy": Always(2)},
    "model_id=": lambda: {"weights": two(), "model_id": "policy"},
    "weights_dict=": lambda: {"weights_dict": {"policy": two()}},
    "wait=": lambda: {"weights": two(), "wait": True, "timeout_s": 60.0},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("make", EITHER)
def test_weights_of_any_form_act_from_the_next_batch_on(make, form):
    with make(policy=Always(1)) as collector:
        assert shown(collector) == ([1], [0])
        assert collector.update_policy_weights_(**form()) is None
        assert collector.policy_version == collector.get_policy_version() == 1
        assert shown(collector) == ([2], [1])


REFUSED = {
    "two forms": ({"policy_or_weights": two(), "weights": two()}, ValueError, "policy_or_weights and weights are both"),
    "a dict and a model": ({"weights_dict": {"policy": two()}, "model_id": "policy"}, ValueError, "weights_dict and m"),
    "no dict": ({"weights_dict": [two()]}, TypeError, "weights_dict is"),
    "an unknown model": ({"weights": two(), "model_id": "critic"}, KeyError, r"no model \['critic'\]; known are"),
    "one of two unknown": ({"weights_dict": {"policy": two(), "x": two()}}, KeyError, r"no model \['x'\]"),
    "a worker that is not there": ({"weights": {7: two()}}, ValueError, r"for the workers \[7\]; this collector has"),
    "kinds of keys": ({"weights": {0: two(), "weight": torch.tensor(2.0)}}, ValueError, "mix worker numbers and names"),
    "another keyword": ({"weihgts": two()}, TypeError, "unexpected keyword argument 'weihgts'"),
    "no weights": ({"policy_or_weights": 3}, TypeError, "pass a module"),
    "a wrong name": ({"weights": {"wait": torch.tensor(2.0)}}, KeyError, "nothing was changed"),
    "no time": ({"weights": two(), "timeout_s": 0}, ValueError, "timeout_s=0 must be more than 0"),
}
BY_MANY = {
    "an id that is not there": ({"weights": two(), "worker_ids": 2}, ValueError, r"workers are \[0, 1\]"),
    "no workers": ({"weights": two(), "worker_ids": []}, ValueError, "is empty; workers are"),
    "yes": ({"weights": two(), "worker_ids": True}, TypeError, "worker_ids=True is"),
    "a device without workers": ({"weights": two(), "worker_ids": "meta"}, ValueError, "no policy runs on that device"),
    "workers twice": ({"weights": {0: two()}, "worker_ids": 0}, ValueError, "publish it without worker_ids"),
    "one of two wrong": ({"weights": {0: two(), 1: {"weight": torch.zeros(2)}}}, ValueError, "nothing was changed"),
}


@pytest.mark.parametrize(("make", "name"), [*product((make_collector, multi), REFUSED), *product([multi], BY_MANY)])
def test_what_is_refused_changes_nothing(make, name):
    arguments, error, message = (REFUSED | BY_MANY)[name]
    with make(policy=Always(1)) as collector:
        with pytest.raises(error, match=message):
            collector.update_policy_weights_(**arguments)
        assert collector.policy_version == 0
        assert shown(collector) == ([1], [0])


@pytest.mark.parametrize("make", EITHER)
def test_the_old_name_of_the_argument_is_deprecated(make):
    with make(policy=Always(1)) as collector:
        with pytest.warns(DeprecationWarning, match="policy_weights= is now policy_or_weights="):
            collector.update_policy_weights_(policy_weights=two())
        assert shown(collector) == ([2], [1])
        with (
            pytest.warns(DeprecationWarning, match="now"),
            pytest.raises(ValueError, match="policy_or_weights and pol"),
        ):
            collector.update_policy_weights_(two(), policy_weights=two())


@pytest.mark.parametrize(
    "policy", [None, WithValue(), lambda observation: torch.zeros_like(observation[..., 0], dtype=torch.int64)]
)
@pytest.mark.parametrize("make", EITHER)
def test_a_policy_without_weights_only_counts(make, policy):
    with make(policy=policy) as collector:
        collector.update_policy_weights_()
        collector.update_policy_weights_({"x": torch.zeros(1)})
        collector.receive_weights()
        assert collector.policy_version == 3
        assert collector.next()[VERSION].unique().tolist() == [3]


@pytest.mark.parametrize("make", EITHER)
def test_a_factorys_policy_keeps_its_weights_until_some_are_passed(make):
    with make(policy_factory=lambda: Always(1)) as collector:
        with pytest.raises(RuntimeError, match="pass weights, or give the collector a policy"):
            collector.update_policy_weights_()
        assert collector.receive_weights() is None
        assert collector.policy_version == 0, "without any source it does nothing"
        assert shown(collector) == ([1], [0])
        collector.update_policy_weights_(two())
        assert shown(collector) == ([2], [1])


@pytest.mark.parametrize("make", EITHER)
def test_publish_and_increment_return_the_version(make):
    with make(policy=Always(1)) as collector:
        assert collector.publish_weights(two()) == 1
        assert collector.publish_weights({0: two()}) == 2
        assert collector.increment_version() == 3
        with pytest.raises(KeyError, match="no model"):
            collector.publish_weights(two(), model_id="critic")
        assert acted(collector)[0] == (2, 3)


# ---- in this process


def test_values_are_copied_into_the_users_module_at_once():
    policy = Always(1)
    parameter = policy.weight
    with make_collector(policy=policy) as collector:
        collector.update_policy_weights_(two())
        assert policy.weight == 2
        assert policy.weight is parameter
        for update in (collector.update_policy_weights_, collector.publish_weights):
            with pytest.raises(TypeError, match="worker_ids: a Collector in this process"):
                update(two(), worker_ids=0)


def test_without_weights_the_version_counts_up_and_the_users_module_is_as_it_is():
    policy = Always(1)
    with make_collector(policy=policy) as collector:
        collector.update_policy_weights_()
        assert policy.weight == 1
        assert collector.policy_version == 1
        with torch.no_grad():
            policy.weight.fill_(2)
        batch = collector.next()
    assert bool((batch["action"] == 2).all()), "within draws the user's own module acts"


def test_weights_from_a_hook_before_the_fragment_are_those_that_act():
    policy = Always(1)
    with make_collector(policy=policy) as collector:
        collector.pre_collect_hook = lambda: collector.update_policy_weights_(two())
        batch = collector.next()
    assert bool((batch["action"] == 2).all())
    assert bool((batch[VERSION] == 1).all())


def test_weights_from_another_thread_act_after_the_running_fragment(gate):
    env, policy = Held(gate, at=3), Always(1)
    with make_collector(env, policy, frames_per_batch=6) as collector:
        drawing = InThread(collector.next)
        gate.await_arrival()
        collector.update_policy_weights_(two())
        assert collector.policy_version == 1
        assert policy.weight == 1
        with pytest.raises(WorkerLate, match="the fragment in progress did not end") as caught:
            collector.update_policy_weights_({"weight": torch.tensor(0.0)}, wait=True, timeout_s=0.01)
        assert caught.value.workers == (0,)
        assert collector.policy_version == 2, "the publication stands"
        gate.open()
        batch = drawing.join().value
        assert batch["action"].unique().tolist() == [1]
        assert batch[VERSION].unique().tolist() == [0]
        assert policy.weight == 0
        assert collector.next()[VERSION].unique().tolist() == [2]


def test_a_copy_forced_by_policy_device_is_renewed_by_an_update(monkeypatch):
    monkeypatch.setattr("swath.collectors.worker.move_to_device", lambda policy, device: copy.deepcopy(policy))
    policy = Always(1)
    with make_collector(policy=policy) as collector:
        with torch.no_grad():
            policy.weight.fill_(2)
        assert collector.next()["action"].unique().tolist() == [1], "training reached a copy"
        collector.update_policy_weights_()
        assert collector.next()["action"].unique().tolist() == [2]
        collector.update_policy_weights_({"weight": torch.tensor(0.0)})
        assert collector.next()["action"].unique().tolist() == [0]
    assert policy.weight == 2, "the user's module is only read"
    assert collector.policy is not policy


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)

    def forward(self, observation):
        return self.net(observation).argmax(-1)


def wrapped():
    return TensorDictModule(Plain(), in_keys=["observation"], out_keys=["action"])


@pytest.mark.parametrize("make", [Plain, wrapped])
def test_a_compiled_policy_keeps_its_names(make):
    policy = make()
    with make_collector(policy=policy, compile_policy={"backend": "eager"}, seed=1) as collector:
        assert collector.policy is policy
        first = collector.next()
        collector.update_policy_weights_()
        collector.update_policy_weights_(make())
        assert set(collector.state_dict()["policy_state_dict"]) == set(policy.state_dict())
        collector.load_state_dict(collector.state_dict())
        assert collector.next().shape == first.shape == (2, 5)


@pytest.mark.parametrize("make", [Plain, wrapped, lambda: lambda observation: (observation[..., 0] > 0).long()])
def test_a_policy_is_compiled_after_as_many_calls_as_warmup_says(make):
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    options = {"backend": backend, "warmup": 3, "dynamic": True}
    with make_collector(
        policy=make(), compile_policy=options, frames_per_batch=2
    ) as collector:  # one call when it is built
        collector.next()
        assert not compilations
        first = [collector.next() for _ in range(3)].pop()
        assert compilations
    assert options["warmup"] == 3
    assert first.shape == (2, 1)
    with pytest.raises(ValueError, match="warmup of compile_policy=-1 must be"):
        make_collector(policy=Plain(), compile_policy={"warmup": -1})


def test_a_graph_is_left_out_with_a_warning_where_torch_has_no_cuda(monkeypatch):
    monkeypatch.setattr("swath.errors._warned_of", set())
    with (
        pytest.warns(NoEffectWarning, match="cudagraph_policy has no effect here: torch sees no CUDA device"),
        make_collector(policy=Plain(), cudagraph_policy={"warmup": 20}) as collector,
    ):
        assert collector.next().shape == (2, 5)


def test_a_graph_of_a_policy_that_is_not_on_cuda_is_refused_where_there_is_some(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="cudagraph_policy needs a policy on CUDA; leave it out"):
        make_collector(policy=Plain(), cudagraph_policy=True)
