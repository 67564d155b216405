"""Snapshots: their contents, how weights of any form get into a module, and which fit."""

import pickle
from collections import OrderedDict

import pytest
import torch
from filled import Filled
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictParams
from tensordict.nn import TensorDictModule
from torch import nn

from swath import WeightStrategy
from swath.weights.snapshot import Manifest, plan_copy, plan_update, take_snapshot
from swath.workers.packing import pack, unpack


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).to(torch.bfloat16))


def tied():
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    return module


def sent(snapshot):
    """Return a snapshot as a worker opens it, in read-only memory."""
    packed = pack(snapshot)
    return unpack(packed.head, [memoryview(bytes(buffer)) for buffer in packed.buffers])


def all_equal(module, other):
    pairs = zip(module.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == same and torch.equal(value, theirs) for (name, value), (same, theirs) in pairs)


def test_a_snapshot_has_one_buffer_per_dtype_and_nothing_of_the_module():
    module = net()
    module.note = lambda: "does not pickle"
    snapshot = take_snapshot(module, Manifest.of(module))
    assert {dtype: buffer.nbytes for dtype, buffer in snapshot.buffers.items()} == {
        torch.float32: 4 * (3 * 4 + 4 + 4 * 4),
        torch.bfloat16: 2 * (4 * 2 + 2),
        torch.int64: 8,
    }
    assert snapshot.nbytes == sum(value.nbytes for value in module.state_dict().values())
    assert len(pack(snapshot).buffers) == 3
    assert len(pickle.dumps(Manifest.of(module))) < 2000


def test_a_snapshot_is_applied_from_read_only_memory():
    source, target = net(1), net(2)
    parameters = list(target.parameters())
    snapshot = sent(take_snapshot(source, Manifest.of(target)))
    assert not any(buffer.flags.writeable for buffer in snapshot.buffers.values())
    plan_copy(snapshot, target)()
    assert all_equal(source, target)
    assert all(mine is before for mine, before in zip(target.parameters(), parameters, strict=True))
    target[0].weight.data.fill_(9)
    assert not bool((snapshot.tensors()["0.weight"] == 9).any())


def test_shared_parameters_are_stored_once_under_any_of_their_names():
    manifest = Manifest.of(tied())
    weight = torch.full((2, 2), 7.0)
    for names in (["0.weight"], ["1.weight"], ["0.weight", "1.weight"]):
        snapshot = take_snapshot(dict.fromkeys(names, weight), manifest)
        assert snapshot.nbytes == 16
        target = tied()
        plan_copy(snapshot, target)()
        assert bool((target[1].weight == 7).all())
        assert target[1].weight is target[0].weight


# Weights of any form


def nested(module):
    return TensorDict.from_module(module).detach().clone()


def as_dict(value):
    return {key: as_dict(part) if isinstance(part, TensorDict) else value[key] for key, part in value.items()}


WEIGHTS = {
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


@pytest.mark.parametrize("form", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_come_in_any_form(form):
    target, source = net(0), net(1)
    before = dict(target.named_parameters())
    wanted = {name: value.clone() for name, value in source.named_parameters()}
    plan_update(target, form(source))()
    for name, parameter in target.named_parameters():
        assert parameter is before[name], "parameters stay parameters"
        assert parameter.requires_grad
        assert torch.equal(parameter, wanted[name])


def test_buffers_are_copied_and_may_be_missing():
    target, source = net(0), net(1)
    source[1].running_mean.fill_(3)
    source[1].num_batches_tracked.fill_(5)
    plan_update(target, source)()
    assert (target[1].running_mean.unique().tolist(), target[1].num_batches_tracked) == ([3], 5)
    weights = {name: value for name, value in source.state_dict().items() if "running" not in name}
    target[1].running_mean.fill_(7)
    plan_update(target, weights)()
    assert target[1].running_mean.unique().tolist() == [7]


BAD = {
    "a missing parameter": (lambda w: w.pop("0.weight"), KeyError, r"missing \['0.weight'\], unknown \[\]"),
    "an unknown name": (lambda w: w.update(more=torch.zeros(1)), KeyError, r"unknown \['more'\]; nothing was changed"),
    "another shape": (lambda w: w.update({"0.bias": torch.zeros(5)}), ValueError, r"0.bias has shape \(5,\) and"),
    "another dtype": (
        lambda w: w.update({"1.num_batches_tracked": torch.tensor(1.0)}),
        ValueError,
        r"has shape \(\) and dtype torch.float32, the policy's has \(\) and torch.int64",
    ),
    "no tensor": (lambda w: w.update({"0.bias": [0.0] * 4}), TypeError, "weight 0.bias is of type list"),
    "a name that is no string": (lambda w: w.update({("0", "bias"): torch.zeros(4)}), TypeError, "names of weights"),
}


@pytest.mark.parametrize(("spoil", "error", "message"), BAD.values(), ids=BAD)
def test_weights_that_do_not_fit_change_nothing(spoil, error, message):
    target = net(0)
    weights = net(1).state_dict()
    spoil(weights)
    with pytest.raises(error, match=message):
        plan_update(target, weights)
    assert all_equal(target, net(0))


@pytest.mark.parametrize("source", [3, "weights.pt", None, [torch.zeros(3)], torch.zeros(3)])
def test_other_objects_are_refused(source):
    with pytest.raises(TypeError, match="pass a module, a TensorDict, or a dict of tensors"):
        plan_update(net(), source)


# Strategies


def test_a_tensordict_nests_and_has_the_extra_state_of_its_modules():
    weights = WeightStrategy().extract_weights(Filled(2.0))
    assert isinstance(weights, TensorDict)
    assert weights["body", "0", "weight"].unique().tolist() == [2.0]
    assert weights["note", "__extra_state__"] == {"text": "2.0"}
    assert set(weights.keys()) == {"body", "brief", "empty", "note", "tied"}


def test_a_state_dict_has_the_names_that_torch_gives():
    weights, module = WeightStrategy("state_dict").extract_weights(Filled(2.0)), Filled(0.0)
    assert isinstance(weights, OrderedDict)
    assert set(weights) == set(module.state_dict())
    module.load_state_dict(weights)
    assert module.values == {2.0}
    assert module.note.text == "2.0"


DESTINATIONS = {
    "a module": lambda: Filled(0.0),
    "a TensorDict": lambda: WeightStrategy().extract_weights(Filled(0.0)),
    "a nested dict": lambda: as_dict(WeightStrategy().extract_weights(Filled(0.0))),
    "a state_dict": lambda: Filled(0.0).state_dict(),
}


def seen_in(destination):
    if isinstance(destination, nn.Module):
        return destination.values, destination.note.text
    flat = WeightStrategy("state_dict").extract_weights(destination)
    text = flat.pop("note._extra_state")["text"]
    return {value for tensor in flat.values() for value in tensor.detach().reshape(-1).tolist()}, text


@pytest.mark.parametrize("inplace", [True, False], ids=["in place", "replaced"])
@pytest.mark.parametrize("form", ["tensordict", "state_dict"])
@pytest.mark.parametrize("make", DESTINATIONS.values(), ids=DESTINATIONS)
def test_weights_are_applied_wherever_they_fit(make, form, inplace):
    destination, strategy = make(), WeightStrategy(form)
    strategy.apply_weights(destination, strategy.extract_weights(Filled(2.0)), inplace=inplace)
    assert seen_in(destination) == ({2.0}, "2.0")


@pytest.mark.parametrize("make", DESTINATIONS.values(), ids=DESTINATIONS)
def test_wrong_names_are_a_key_error_and_change_nothing(make):
    destination = make()
    with pytest.raises(KeyError, match="unknown \\['head'\\]"):
        WeightStrategy().apply_weights(destination, {**Filled(2.0).state_dict(), "head": torch.ones(1)})
    assert seen_in(destination) == ({0.0}, "0.0")


def test_another_strategy_is_refused():
    with pytest.raises(ValueError, match="strategy='pickle' must be one of 'tensordict', 'state_dict'"):
        WeightStrategy("pickle")
