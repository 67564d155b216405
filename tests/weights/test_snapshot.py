"""Snapshots: what is in them, and how they come into a module. Which weights fit is tested with `plan`."""

import pickle
from collections import OrderedDict

import pytest
import torch
from scheme_toys import Filled
from tensordict import TensorDict
from torch import nn

from swath import WeightStrategy
from swath.weights.snapshot import Manifest, fitting, take
from swath.workers.packing import pack, unpack


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).to(torch.bfloat16))


def tied():
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    return module


def travelled(snapshot):
    """As a worker opens it: in memory that it cannot write to."""
    packed = pack(snapshot)
    return unpack(packed.head, [memoryview(bytes(buffer)) for buffer in packed.buffers])


def all_equal(one, other):
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == same and torch.equal(value, theirs) for (name, value), (same, theirs) in pairs)


def test_a_snapshot_has_one_buffer_per_dtype_and_nothing_of_the_module():
    module = net()
    module.note = lambda: "does not pickle"
    snapshot = take(module, Manifest.of(module))
    assert {dtype: buffer.nbytes for dtype, buffer in snapshot.buffers.items()} == {
        torch.float32: 4 * (3 * 4 + 4 + 4 * 4),
        torch.bfloat16: 2 * (4 * 2 + 2),
        torch.int64: 8,
    }
    assert snapshot.nbytes == sum(value.nbytes for value in module.state_dict().values())
    assert len(pack(snapshot).buffers) == 3
    assert len(pickle.dumps(Manifest.of(module))) < 2000


def test_what_travelled_is_applied_from_memory_that_cannot_be_written():
    source, target = net(1), net(2)
    parameters = list(target.parameters())
    snapshot = travelled(take(source, Manifest.of(target)))
    assert not any(buffer.flags.writeable for buffer in snapshot.buffers.values())
    fitting(snapshot, target)()
    assert all_equal(source, target)
    assert all(mine is before for mine, before in zip(target.parameters(), parameters, strict=True))
    target[0].weight.data.fill_(9)
    assert not bool((snapshot.tensors()["0.weight"] == 9).any())


def test_shared_parameters_are_in_it_once_under_whatever_name_they_come():
    manifest = Manifest.of(tied())
    weight = torch.full((2, 2), 7.0)
    for names in (["0.weight"], ["1.weight"], ["0.weight", "1.weight"]):
        snapshot = take(dict.fromkeys(names, weight), manifest)
        assert snapshot.nbytes == 16
        target = tied()
        fitting(snapshot, target)()
        assert bool((target[1].weight == 7).all())
        assert target[1].weight is target[0].weight


FORMS = ("tensordict", "state_dict")


def as_dict(value):
    return {key: as_dict(part) if isinstance(part, TensorDict) else value[key] for key, part in value.items()}


def test_a_tensordict_nests_and_has_extra_state_beside_the_weights_of_its_module():
    weights = WeightStrategy().extract_weights(Filled(2.0))
    assert isinstance(weights, TensorDict)
    assert weights["body", "weight"].unique().tolist() == [2.0]
    assert weights["note", "__extra_state__"] == {"text": "2.0"}
    assert set(weights.keys()) == {"body", "note", "seen"}


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


@pytest.mark.parametrize("inplace", [True, False], ids=["in place", "anew"])
@pytest.mark.parametrize("form", FORMS)
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
