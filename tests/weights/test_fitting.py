"""Weights of any form into a module: checked as a whole, copied as a whole."""

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictParams
from tensordict.nn import TensorDictModule
from torch import nn

from swath.weights.manifest import plan
from swath.weights.snapshot import flat_weights


def net(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(dtype)


def nested(module):
    td = TensorDict.from_module(module)
    return td.detach().clone()


def as_dict(value):
    return {key: as_dict(part) if hasattr(part, "items") else part for key, part in value.items()}


FORMS = {
    "a module": lambda m: m,
    "its state_dict": lambda m: m.state_dict(),
    "a dict": lambda m: dict(m.state_dict()),
    "a TensorDict": nested,
    "a locked TensorDict": lambda m: nested(m).lock_(),
    "TensorDict.from_module": TensorDict.from_module,
    "a nested dict": lambda m: as_dict(nested(m)),
    "parameters in a TensorDict": lambda m: TensorDictParams(nested(m), no_convert=True),
    "with gradients": lambda m: {name: value * 1 for name, value in m.named_parameters()},
    "a lazy TensorDict": lambda m: LazyStackedTensorDict(nested(m), nested(m))[0],
    "parameters alone": lambda m: dict(m.named_parameters()),
    "a flat TensorDict": lambda m: TensorDict(dict(m.state_dict())),
    "float64": lambda m: m.double(),
    "a TensorDict module": lambda m: TensorDictModule(m, in_keys=["x"], out_keys=["y"]),
    "wrapped twice": lambda m: {f"module.module.{name}": value for name, value in m.state_dict().items()},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_weights_come_in_any_form(form):
    target, source = net(0), net(1)
    before = dict(target.named_parameters())
    wanted = {name: value.clone() for name, value in source.named_parameters()}
    plan(target, form(source))()
    for name, parameter in target.named_parameters():
        assert parameter is before[name], "parameters stay parameters"
        assert parameter.requires_grad
        assert parameter.dtype == torch.float32
        assert torch.allclose(parameter, wanted[name])


def test_prefixes_are_added_too():
    target = TensorDictModule(net(0), in_keys=["x"], out_keys=["y"])
    plan(target, net(1))()
    assert torch.equal(target.module[0].weight, net(1)[0].weight)


def test_buffers_are_copied_and_may_be_missing():
    target, source = net(0), net(1)
    source[1].running_mean.fill_(3)
    source[1].num_batches_tracked.fill_(5)
    plan(target, source)()
    assert bool((target[1].running_mean == 3).all())
    assert target[1].num_batches_tracked == 5
    weights = {name: value for name, value in source.state_dict().items() if "running" not in name}
    target[1].running_mean.fill_(7)
    plan(target, weights)()
    assert bool((target[1].running_mean == 7).all())


BAD = {
    "a missing parameter": (lambda w: w.pop("0.weight"), KeyError, r"missing \['0.weight'\], unknown \[\]"),
    "an unknown name": (lambda w: w.update(more=torch.zeros(1)), KeyError, r"unknown \['more'\]; nothing was changed"),
    "another shape": (
        lambda w: w.update({"0.bias": torch.zeros(5)}),
        ValueError,
        r"0.bias has shape \(5,\) and",
    ),
    "another dtype": (
        lambda w: w.update({"1.num_batches_tracked": torch.tensor(1.0)}),
        ValueError,
        r"has shape \(\) and dtype torch.float32, the policy's has \(\) and torch.int64",
    ),
    "no tensor": (lambda w: w.update({"0.bias": [0.0] * 4}), TypeError, "weight 0.bias is of type list"),
    "a name that is no string": (
        lambda w: w.update({("0", "bias"): torch.zeros(4)}),
        TypeError,
        "names of weights",
    ),
}


@pytest.mark.parametrize(("spoil", "error", "message"), BAD.values(), ids=BAD)
def test_what_does_not_fit_changes_nothing(spoil, error, message):
    target = net(0)
    weights = {name: value.clone() for name, value in net(1).state_dict().items()}
    spoil(weights)
    with pytest.raises(error, match=message):
        plan(target, weights)
    for name, value in net(0).state_dict().items():
        assert torch.equal(target.state_dict()[name], value)


@pytest.mark.parametrize("source", [3, "weights.pt", None, [torch.zeros(3)], torch.zeros(3)])
def test_what_is_no_weights_is_refused(source):
    with pytest.raises(TypeError, match="pass a module, a TensorDict, or a dict of tensors"):
        plan(net(), source)


def test_two_ways_to_rename_are_none():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Module()
            self.module.module = nn.Module()
            self.module.module.register_buffer("x", torch.zeros(1))
            self.module.register_buffer("x", torch.zeros(1))

    with pytest.raises(KeyError, match="unknown"):
        plan(Twice(), {"x": torch.ones(1)})


@pytest.mark.parametrize("form", [lambda m: m, TensorDict.from_module, lambda m: m.state_dict()])
def test_a_plan_with_the_modules_own_memory_takes_nothing_back(form):
    module = net(0)
    apply = plan(module, form(module))
    with torch.no_grad():
        module[0].weight.fill_(9)
    apply()
    assert bool((module[0].weight == 9).all())


def test_shared_parameters_may_be_named_once_or_twice():
    def tied():
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        module[1].weight = module[0].weight
        return module

    target, source = tied(), tied()
    plan(target, source)()
    assert torch.equal(target[1].weight, source[0].weight)
    plan(target, dict(source.named_parameters()))()
    assert target[1].weight is target[0].weight


class Extra(nn.Linear):
    def __init__(self, note):
        super().__init__(1, 1)
        self.note = note

    def get_extra_state(self):
        return self.note

    def set_extra_state(self, state):
        self.note = state


@pytest.mark.parametrize("note", ["text", {"deep": [1]}, torch.ones(2)])
def test_extra_state_comes_along_as_a_copy(note):
    source, target = nn.Sequential(Extra(note)), nn.Sequential(Extra(None))
    plan(target, source)()
    assert str(target[0].note) == str(note)
    assert target[0].note is not note or isinstance(note, str)
    plan(target, dict(source.named_parameters()))()
    assert str(target[0].note) == str(note), "it may be missing"


def targets():
    source = net(0)
    return {
        "a TensorDict": TensorDict.from_module(source),
        "a locked TensorDict of data": TensorDict.from_module(source).data.lock_(),
        "a nested dict": as_dict(nested(source)),
        "a state_dict": source.state_dict(),
    }


@pytest.mark.parametrize("kind", list(targets()))
def test_weights_come_into_the_tensors_of_whatever_holds_them(kind):
    target, source = targets()[kind], net(1)
    before = flat_weights(target)
    change = plan(target, source)
    wanted = {name: value.clone() for name, value in source.state_dict().items()}
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.zero_()
    change()
    for name, value in flat_weights(target).items():
        assert torch.equal(value, wanted[name]), "values are read when the plan is made"
        assert value.data_ptr() == before[name].data_ptr()


def test_what_is_missing_is_an_error_unless_somebody_else_checks_it():
    target = {"a": torch.zeros(1), "b": torch.zeros(1)}
    with pytest.raises(KeyError, match="missing"):
        plan(target, {"a": torch.ones(1)})
    plan(target, {"a": torch.ones(1)}, required=False)()
    assert (target["a"].item(), target["b"].item()) == (1, 0)
    with pytest.raises(KeyError, match="unknown"):
        plan(target, {"c": torch.ones(1)}, required=False)


@pytest.mark.parametrize("held", [lambda module: module, lambda module: module.state_dict()])
def test_another_view_of_the_models_own_memory_is_copied(held):
    square = nn.Linear(3, 3)
    wanted = square.weight.detach().t().clone()
    plan(held(square), {"weight": square.weight.t(), "bias": square.bias})()
    assert torch.equal(square.weight, wanted)
