"""Which weights fit a module, and that nothing changes when they do not."""

from collections import OrderedDict

import pytest
import torch
from tensordict import TensorDict, TensorDictParams
from torch import nn

from swath.weights.loading import flat_weights, plan


class Net(nn.Module):
    """A linear layer, a batch norm (which has buffers), and an int buffer."""

    def __init__(self, fill=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(fill)


def wrapped(module):
    outer = nn.Module()
    outer.module = module
    return outer


def parameters_only(module):
    return {name: tensor.detach().clone() for name, tensor in module.named_parameters()}


def nested(module):
    return TensorDict.from_module(module).detach().clone()


GOOD = {
    "a module": lambda: Net(2.0),
    "a state_dict": lambda: Net(2.0).state_dict(),
    "an ordered dict": lambda: OrderedDict(Net(2.0).state_dict()),
    "a nested tensordict": lambda: nested(Net(2.0)),
    "a locked tensordict of parameters": lambda: TensorDict.from_module(Net(2.0)).lock_(),
    "tensordict parameters": lambda: TensorDictParams(nested(Net(2.0))),
    "a nested dict": lambda: nested(Net(2.0)).to_dict(),
    "a dict without buffers": lambda: parameters_only(Net(2.0)),
    "a module with a prefix": lambda: wrapped(Net(2.0)),
    "a state_dict with a prefix": lambda: wrapped(Net(2.0)).state_dict(),
    "another floating dtype": lambda: Net(2.0).double().state_dict(),
    "half precision": lambda: parameters_only(Net(2.0).bfloat16()),
}


@pytest.mark.parametrize("form", list(GOOD))
def test_weights_arrive_from(form):
    mine = Net()
    plan(mine, GOOD[form]())()
    assert all(bool((parameter == 2).all()) for parameter in mine.parameters())
    assert all(parameter.dtype == torch.float32 and parameter.requires_grad for parameter in mine.parameters())


def test_a_prefix_is_added_where_the_policy_has_one_and_the_weights_do_not():
    mine = wrapped(Net())
    plan(mine, Net(2.0))()
    assert all(bool((parameter == 2).all()) for parameter in mine.parameters())


def test_buffers_arrive_and_stay_as_they_are_where_they_are_missing():
    theirs, mine = Net(2.0), Net()
    theirs.body[1].running_mean.fill_(5.0)
    theirs.body[1].num_batches_tracked.fill_(9)
    mine.body[1].running_var.fill_(7.0)
    plan(mine, parameters_only(theirs))()
    assert bool((mine.body[1].running_var == 7).all())
    plan(mine, theirs)()
    assert bool((mine.body[1].running_mean == 5).all())
    assert mine.body[1].num_batches_tracked == 9


def without(name):
    weights = Net(2.0).state_dict()
    del weights[name]
    return weights


def changed(name, tensor):
    return {**Net(2.0).state_dict(), name: tensor}


BAD = {
    "a missing parameter": (lambda: without("body.0.bias"), KeyError, r"missing \['body.0.bias'\], unknown \[\]"),
    "an unknown name": (lambda: changed("head", torch.ones(1)), KeyError, r"missing \[\], unknown \['head'\]"),
    "other names": (lambda: {"a": torch.ones(1)}, KeyError, r"missing \['body.0.bias', .*unknown \['a'\]"),
    "nothing": (dict, KeyError, "missing"),
    "another shape": (
        lambda: changed("body.0.weight", torch.ones(2, 3)),
        ValueError,
        r"body.0.weight has shape \(2, 3\), the policy's has \(3, 2\)",
    ),
    "a scalar for a vector": (lambda: changed("body.0.bias", torch.tensor(1.0)), ValueError, r"has shape \(\)"),
    "ints for floats": (
        lambda: changed("body.0.bias", torch.ones(3, dtype=torch.int64)),
        ValueError,
        r"body.0.bias has dtype torch.int64, the policy's has torch.float32",
    ),
    "floats for ints": (
        lambda: changed("body.1.num_batches_tracked", torch.tensor(1.0)),
        ValueError,
        "num_batches_tracked has dtype torch.float32",
    ),
    "int keys": (lambda: {0: Net().state_dict()}, TypeError, "key 0; names of weights are strings"),
    "numbers": (
        lambda: changed("body.0.bias", [1.0, 2.0, 3.0]),
        TypeError,
        "body.0.bias is of type list; it must be a tensor",
    ),
    "a path": (lambda: "weights.pt", TypeError, "weights are of type str; pass a module"),
}


@pytest.mark.parametrize("form", list(BAD))
def test_weights_that_do_not_fit_are_an_error_and_change_nothing(form):
    make, error, message = BAD[form]
    mine = Net(1.0)
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    with pytest.raises(error, match=message):
        plan(mine, make())
    assert all(torch.equal(tensor, before[name]) for name, tensor in mine.state_dict().items())


def test_nothing_changes_before_the_plan_is_carried_out_and_values_are_those_of_when_it_was_made():
    mine, theirs = Net(), Net(2.0)
    apply = plan(mine, theirs)
    with torch.no_grad():
        theirs.body[0].weight.fill_(3.0)
    assert bool((mine.body[0].weight == 0).all())
    apply()
    assert bool((mine.body[0].weight == 2).all())


def test_parameters_stay_the_same_objects_and_theirs_are_only_read():
    mine, theirs = Net(), Net(2.0)
    before = list(mine.parameters())
    plan(mine, theirs)()
    assert all(a is b for a, b in zip(before, mine.parameters(), strict=True))
    with torch.no_grad():
        mine.body[0].weight.fill_(9.0)
    assert bool((theirs.body[0].weight == 2).all())


def test_shared_parameters_are_given_once_or_under_both_names():
    def tied(fill):
        net = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})
        net["b"] = net["a"]
        nn.init.constant_(net["a"].weight, fill)
        return net

    for weights in (tied(2.0), tied(2.0).state_dict(), parameters_only(tied(2.0))):
        mine = tied(0.0)
        plan(mine, weights)()
        assert bool((mine["b"].weight == 2).all())
        assert mine["a"].weight is mine["b"].weight


def test_flat_weights_are_detached():
    assert not any(tensor.requires_grad for tensor in flat_weights(Net()).values())
    assert not any(tensor.requires_grad for tensor in flat_weights(dict(Net().named_parameters())).values())
