"""Snapshots: what is in them, and how they come into a module. Which weights fit is tested with `plan`."""

import pickle

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from swath.weights.manifest import Manifest, take
from swath.weights.snapshot import fitting
from swath.workers.packing import pack, unpack


class Cached(nn.Linear):
    """A linear layer with a buffer that is not part of its state."""

    def __init__(self, value=0.0, size=3):
        super().__init__(2, 2)
        self.register_buffer("cache", torch.full((size,), value), persistent=False)


class Noted(nn.Module):
    """No tensors, but extra state."""

    def __init__(self, note=None):
        super().__init__()
        self.note = note

    def get_extra_state(self):
        return self.note

    def set_extra_state(self, state):
        self.note = state


class Statistics(nn.Module):
    """Buffers and no parameters."""

    def __init__(self, mean=0.0):
        super().__init__()
        self.register_buffer("mean", torch.full((2,), mean))


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


def test_a_model_without_weights_has_no_snapshot():
    for model in (None, lambda observation: observation, nn.Tanh(), nn.Sequential()):
        assert Manifest.of(model).empty
        assert take({"x": torch.zeros(1)}, Manifest.of(model)) is None


def test_statistics_without_parameters_travel():
    source, target = Statistics(3.0), Statistics()
    fitting(take(source, Manifest.of(target)), target)()
    assert target.mean.tolist() == [3.0, 3.0]
    fitting(take({}, Manifest.of(target)), target)()
    assert target.mean.tolist() == [3.0, 3.0], "buffers may be missing"


@pytest.mark.parametrize("note", ["text", {"deep": [1]}, torch.ones(2), None])
def test_extra_state_alone_travels_and_is_each_receivers_own(note):
    source, target = nn.Sequential(Noted(note)), nn.Sequential(Noted("before"))
    snapshot = take(source, Manifest.of(target))
    fitting(snapshot, target)()
    assert str(target[0].note) == str(note)
    if isinstance(note, dict):
        target[0].note["deep"].append(2)
        assert snapshot.extras["0._extra_state"] == source[0].note == {"deep": [1]}


@pytest.mark.parametrize("form", [lambda m: m, TensorDict.from_module], ids=["a module", "a TensorDict"])
def test_buffers_that_are_no_state_travel_where_they_fit(form):
    target = Cached()
    fitting(take(form(Cached(2.0)), Manifest.of(target)), target)()
    assert target.cache.tolist() == [2.0] * 3
    fitting(take(form(Cached(5.0, size=4)), Manifest.of(target)), target)()
    assert target.cache.tolist() == [2.0] * 3, "a cache of another size stays"
    fitting(take(nn.Linear(2, 2), Manifest.of(target)), target)()
    assert target.cache.tolist() == [2.0] * 3


UNFIT = {
    "another shape": (
        lambda: nn.Sequential(nn.Linear(3, 5), Noted()),
        ValueError,
        r"0.weight has shape \(4, 3\), the model's",
    ),
    "no such weight": (lambda: nn.Linear(3, 4), KeyError, "the model has no 0.bias, 0.weight, 1"),
    "no such part": (lambda: nn.Sequential(nn.Linear(3, 4)), KeyError, "the model has no 1._extra_state"),
}


@pytest.mark.parametrize(("make", "error", "message"), UNFIT.values(), ids=UNFIT)
def test_a_snapshot_of_another_model_changes_nothing(make, error, message):
    source = nn.Sequential(nn.Linear(3, 4), Noted(1))
    snapshot = take(source, Manifest.of(source))
    target = make()
    before = [value.clone() for value in target.parameters()]
    with pytest.raises(error, match=message):
        fitting(snapshot, target)()
    assert all(map(torch.equal, target.parameters(), before))


def test_manifests_say_how_models_differ():
    one = Manifest.of(net(1))
    assert one == Manifest.of(net(2)) == pickle.loads(pickle.dumps(one))
    assert one.difference(Manifest.of(net(2))) == ""
    assert Manifest.of(nn.Linear(2, 3)).difference(Manifest.of(nn.Linear(2, 4))) == (
        "weight bias is torch.float32 (4,), not torch.float32 (3,)"
    )
    assert Manifest.of(nn.Linear(2, 3)).difference(Manifest.of(nn.Linear(2, 3, bias=False))) == (
        "weight bias is missing, not torch.float32 (3,)"
    )
    loose = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    assert "1.weight" in Manifest.of(tied()).difference(Manifest.of(loose))
    assert "_extra_state" in Manifest.of(Noted()).difference(Manifest.of(nn.Tanh()))
