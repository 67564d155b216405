"""Steps on a tape come back stacked, whatever form they have."""

import weakref

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

from swath.rollout import tape as tapes
from swath.rollout.tape import LARGE, PORTION, Tape

LENGTHS = [1, PORTION - 1, PORTION, PORTION + 1, 3 * PORTION]


def step(t, batch=(2,), **more):
    """A step that tells its number."""
    number = torch.full((*batch, 1), float(t))
    return TensorDict({"number": number, **more, "next": TensorDict({"number": number + 1}, batch)}, batch)


def recorded(steps, n_steps=None, dim=1):
    tape = Tape(n_steps or len(steps), dim)
    for one in steps:
        tape.record(one)
    return tape.stacked()


def numbers(n_steps):
    return [float(t) for t in range(n_steps)]


@pytest.mark.parametrize("n_steps", LENGTHS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_all_steps_come_back_in_order_as_one_tensordict(n_steps, batch):
    stacked = recorded([step(t, batch) for t in range(n_steps)], dim=len(batch))
    assert type(stacked) is TensorDict
    assert stacked.shape == stacked["next"].shape == (*batch, n_steps)
    assert stacked["number"].reshape(-1, n_steps)[0].tolist() == numbers(n_steps)
    assert torch.equal(stacked["next", "number"], stacked["number"] + 1)
    assert stacked["number"].is_contiguous()


def test_large_entries_are_in_their_places_too():
    image = torch.arange(2 * LARGE, dtype=torch.int64).reshape(2, -1)
    stacked = recorded([step(t, image=image + t) for t in range(PORTION + 2)])
    assert torch.equal(stacked["image"], torch.stack([image + t for t in range(PORTION + 2)], 1))


def test_fewer_steps_than_there_is_room_for_come_back_alone():
    stacked = recorded([step(t) for t in range(PORTION + 3)], n_steps=4 * PORTION)
    assert stacked["number"][0].flatten().tolist() == numbers(PORTION + 3)


def test_steps_may_have_their_entries_in_any_order():
    steps = [step(t) for t in range(PORTION)]
    steps[3] = TensorDict(dict(reversed(steps[3].items())), 2)
    assert torch.equal(recorded(steps)["next", "number"], recorded([step(t) for t in range(PORTION)])["next", "number"])


@pytest.mark.parametrize("at", [0, 1, PORTION, PORTION + 1, 2 * PORTION])
def test_where_a_shape_changes_steps_are_stacked_lazily(at):
    n_steps = 2 * PORTION + 1
    stacked = recorded([step(t, wide=torch.full((2, 2 if t == at else 1), float(t))) for t in range(n_steps)])
    assert isinstance(stacked, LazyStackedTensorDict)
    assert stacked["number"][0].flatten().tolist() == numbers(n_steps)
    assert [one["wide"].shape[1] for one in stacked.unbind(1)] == [2 if t == at else 1 for t in range(n_steps)]


def test_a_dtype_that_changes_is_not_forced_into_the_first():
    n_steps = 2 * PORTION
    numbers_ = [torch.full((2,), t, dtype=torch.int64 if t < PORTION else torch.float64) for t in range(n_steps)]
    stacked = recorded([step(t, mixed=mixed + 0.5 if t >= PORTION else mixed) for t, mixed in enumerate(numbers_)])
    assert stacked["mixed"][0].tolist() == [t + 0.5 * (t >= PORTION) for t in range(n_steps)]


def test_a_key_that_comes_later_is_kept():
    stacked = recorded([step(0), step(1, later=torch.ones(2))])
    assert ["later" in one for one in stacked.unbind(1)] == [False, True]


def test_what_no_tensor_holds_stays_what_it_is():
    stacked = recorded([step(t, word=NonTensorData(str(t), 2)) for t in range(PORTION + 1)])
    assert [one["word"] for one in stacked.unbind(1)] == [str(t) for t in range(PORTION + 1)]


def test_steps_are_let_go_once_they_are_written(monkeypatch):
    monkeypatch.setattr(tapes, "PORTION", 2)
    tape, steps = Tape(4, 1), [step(t) for t in range(3)]
    for one in steps:
        tape.record(one)
    seen = [weakref.ref(one) for one in steps]
    del one, steps
    assert [ref() is None for ref in seen] == [True, True, False]


def test_what_comes_back_is_in_memory_of_its_own():
    steps = [step(t) for t in range(PORTION + 1)]
    stacked = recorded(steps)
    for one in steps:
        one["number"].fill_(-1)
    assert stacked["number"][0].flatten().tolist() == numbers(PORTION + 1)
