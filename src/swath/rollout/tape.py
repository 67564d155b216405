"""Steps of TensorDict envs, recorded one after another and written into one TensorDict in portions.

    step [*B] ──▶ a few at hand ──▶ their places in [*B, T]
                      └── unlike the first? then all that follow are kept, and stacked lazily at the end

What is written is freed at once: many objects that live long would keep Python's garbage collector busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

PORTION = 32
"""How many steps are written at once."""

LARGE = 1 << 14
"""Bytes of an entry of a step above which steps are written straight to their places; for small ones that is slow."""

_form = attrgetter("__class__", "dtype", "device", "shape")


class Tape:
    """Room for T steps.

    Args:
        n_steps: T.
        dim: where T is among the dimensions: behind `*B`.
    """

    def __init__(self, n_steps: int, dim: int) -> None:
        self._n_steps, self._dim = n_steps, dim
        self._whole: TensorDict | None = None
        self._n_written = 0
        self._at_hand: list[TensorDictBase] = []
        self._alike = True

    def record(self, step: TensorDictBase) -> None:
        """Record a step `[*B]`, which nobody writes into again."""
        self._at_hand.append(step)
        if self._alike and len(self._at_hand) == PORTION:
            self._write()

    def stacked(self) -> Any:
        """The t steps recorded, `[*B, t]`, dense wherever their forms allow it."""
        if self._alike and self._at_hand:
            self._write()
        if self._n_written == self._n_steps:
            return self._whole
        written = () if self._whole is None else self._whole.unbind(self._dim)[: self._n_written]
        stacked = LazyStackedTensorDict.maybe_dense_stack([*written, *self._at_hand], dim=self._dim)
        return stacked.clone() if isinstance(stacked, LazyStackedTensorDict) else stacked

    def _write(self) -> None:
        if self._whole is None:
            self._whole = _room_for(self._at_hand[0], self._n_steps, self._dim)
        self._alike = self._whole is not None and _write(self._at_hand, self._whole, self._n_written, self._dim)
        if self._alike:
            self._n_written += len(self._at_hand)
            self._at_hand = []


def _room_for(step: TensorDictBase, n_steps: int, dim: int) -> TensorDict | None:
    """Room for T steps like this one; `None` where it holds more than tensors in plain TensorDicts."""
    entries: dict[str, Any] = {}
    for name, entry in step.items():
        if type(entry) is torch.Tensor:
            entries[name] = torch.empty(_widened(entry.shape, n_steps, dim), dtype=entry.dtype, device=entry.device)
        elif type(entry) is not TensorDict or (room := _room_for(entry, n_steps, dim)) is None:
            return None
        else:
            entries[name] = room
    return TensorDict(entries, batch_size=_widened(step.batch_size, n_steps, dim)) if type(step) is TensorDict else None


def _widened(shape: Sequence[int], n_steps: int, dim: int) -> tuple[int, ...]:
    return (*shape[:dim], n_steps, *shape[dim:])


def _write(steps: Sequence[TensorDictBase], whole: TensorDict, at: int, dim: int) -> bool:
    """Write these steps to their places from `at` on; false if one of them is unlike the room that there is."""
    names = list(whole.keys())
    rows = [_row(td, names) for td in steps]
    return None not in rows and all(
        _write_entry(column, room, at, dim)
        for column, room in zip(zip(*rows, strict=True), whole.values(), strict=True)
    )


def _row(td: Any, names: Sequence[str]) -> Iterable[Any] | None:
    """The entries of these names, which are all; `None` if that is not so."""
    if type(td) is not TensorDict:
        return None
    there = list(td.keys())
    if there == names:
        return list(td.values())
    return [td.get(name) for name in names] if sorted(there) == sorted(names) else None


def _write_entry(column: tuple[Any, ...], room: Any, at: int, dim: int) -> bool:
    if type(room) is TensorDict:
        return _write(column, room, at, dim)
    if set(map(_form, column)) != {_form(room.select(dim, at))}:
        return False
    place = room.narrow(dim, at, len(column))
    if column[0].nbytes > LARGE:
        torch.stack(column, dim, out=place)
    else:
        place.copy_(torch.stack(column, dim))
    return True
