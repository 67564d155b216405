"""Weights of any form into a module: checked as a whole, copied as a whole."""

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictParams
from tensordict.nn import TensorDictModule
from torch import nn

from swath.weights.snapshot import plan


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
