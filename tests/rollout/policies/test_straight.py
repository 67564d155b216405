"""Sequences called straight give what they give themselves, and notice what is changed later."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    set_interaction_type,
    set_skip_existing,
)
from torch import nn
from torch.distributions import Categorical, Normal

from swath.rollout.policies.straight import straight


class Twice(TensorDictModuleBase):
    """A module of a user's."""

    in_keys, out_keys = ["x"], ["twice"]

    def forward(self, tensordict):
        return tensordict.set("twice", 2 * tensordict["x"])


class Other(TensorDictSequential):
    """A sequence that is run in its own way."""

    def forward(self, tensordict):
        return super().forward(tensordict).set("by", torch.ones(len(tensordict)))


def net(in_key="x", out_key="logits"):
    return TensorDictModule(nn.Linear(3, 3), [in_key], [out_key])


def sampler(**options):
    return ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=Categorical, default_interaction_type="random", **options
    )


def gaussian():
    module = TensorDictModule(lambda x: (x, x.exp()), ["x"], ["loc", "scale"])
    last = ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=Normal, return_log_prob=True)
    return ProbabilisticTensorDictSequential(module, last)


def given():
    return TensorDict({"x": torch.arange(6.0).reshape(2, 3)}, [2])


def called(call, kind=InteractionType.RANDOM):
    torch.manual_seed(3)
    with torch.no_grad(), set_interaction_type(kind):
        td = given()
        answer = call(td)
    assert answer is td
    return answer


PLAIN = [
    lambda: TensorDictSequential(net(), net("logits", "other")),
    lambda: TensorDictSequential(Twice(), net()),
    lambda: TensorDictSequential(TensorDictSequential(net()), Twice()),
    lambda: ProbabilisticTensorDictSequential(net(), sampler()),
    lambda: ProbabilisticTensorDictSequential(net(), sampler(return_log_prob=True)),
    lambda: TensorDictSequential(Twice(), ProbabilisticTensorDictSequential(net(), sampler())),
    gaussian,
]


@pytest.mark.parametrize("kind", [InteractionType.RANDOM, InteractionType.MODE])
@pytest.mark.parametrize("make", PLAIN)
def test_a_plain_sequence_gives_what_it_gives_itself(make, kind):
    policy = make()
    quick = straight(policy)
    assert quick is not policy
    one, other = called(quick, kind), called(policy, kind)
    assert list(one.keys()) == list(other.keys())
    assert (one == other).all()


@pytest.mark.parametrize(
    "make",
    [
        Twice,
        net,
        lambda: nn.Linear(3, 3),
        lambda: Other(net()),
        lambda: TensorDictSequential(net(), inplace=False),
        lambda: TensorDictSequential(net(), partial_tolerant=True),
        lambda: TensorDictSequential(net(), net("logits", "other"), selected_out_keys=["other"]),
        lambda: TensorDictSequential({"a": net()}),
        lambda: ProbabilisticTensorDictSequential(net(), sampler(), return_composite=True),
        lambda: ProbabilisticTensorDictSequential(net(), net("logits", "action"), sampler()),
    ],
)
def test_anything_else_is_called_as_it_is(make):
    policy = make()
    assert straight(policy) is policy


def test_hooks_that_come_later_are_called():
    policy, seen = TensorDictSequential(net()), []
    quick = straight(policy)
    for module in (policy, policy[0]):
        module.register_forward_hook(lambda module, *_: seen.append(module))
    called(quick)
    assert seen == [policy[0], policy]


def test_a_module_that_takes_the_place_of_another_later_is_called():
    policy = TensorDictSequential(net())
    quick = straight(policy)
    policy[0] = Twice()
    assert set(called(quick).keys()) == {"x", "twice"}


def test_a_forward_of_an_instance_is_called():
    policy = TensorDictSequential(Twice())
    quick = straight(policy)
    policy[0].forward = lambda td: td.set("mine", td["x"])
    assert set(called(quick).keys()) == {"x", "mine"}


def test_a_class_that_is_called_in_a_way_of_its_own_is_called_so():
    class Counted(Twice):
        def __call__(self, tensordict):
            return super().__call__(tensordict).set("counted", tensordict["x"])

    assert "counted" in called(straight(TensorDictSequential(Counted())))


def test_entries_that_are_to_be_skipped_are_skipped():
    quick = straight(TensorDictSequential(net()))
    there = given().set("logits", torch.zeros(2, 3))
    with set_skip_existing(True):
        assert not quick(there)["logits"].any()
    assert quick(there)["logits"].any()


def test_an_error_of_a_module_is_its_own():
    def fail(x):
        raise ArithmeticError(f"no {x}")

    policy = straight(TensorDictSequential(TensorDictModule(fail, ["x"], ["y"])))
    with pytest.raises(ArithmeticError, match="no tensor"):
        policy(given())
