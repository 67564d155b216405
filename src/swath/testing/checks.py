"""What must be true of batches, whatever the env: each check raises an `AssertionError` that says where it is not.

batches of one collector, in order ──▶ joined [B, T] ──▶ flags, continuity, ids
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.keys import DONE, MASK, NEXT, REWARD, TERMINATED, TRAJ_IDS, TRUNCATED, Key, as_key, as_tuple
from swath.rollout.episodes.ids import LIFE_BITS, WORKER_BITS
from swath.rollout.spaces import Array

_OF_THE_STEP = (REWARD, DONE, TERMINATED, TRUNCATED)


def joined(batches: Sequence[TensorDictBase]) -> TensorDictBase:
    """Consecutive batches `[*B, Tᵢ]` of one worker as one, `[B, ΣTᵢ]`."""
    whole: TensorDictBase = torch.cat(list(batches), dim=-1)
    return whole.unsqueeze(0) if whole.ndim == 1 else whole.reshape(-1, whole.shape[-1])


def by_life(batches: Sequence[TensorDictBase]) -> dict[tuple[int, int], TensorDictBase]:
    """Batches of any number of workers as one `[B, ΣTᵢ]` for each life of each worker, by worker and life.

    Frames are told apart by their ids. Rows of one worker in a batch are those of its B envs.
    """
    parts: dict[tuple[int, int], list[TensorDictBase]] = {}
    for batch in batches:
        rows = joined([batch])
        lives = [life_of(int(ids.max())) for ids in per_frame(rows, TRAJ_IDS)]
        for life in dict.fromkeys(lives):
            parts.setdefault(life, []).append(rows[[row for row, one in enumerate(lives) if one == life]])
    return {life: joined(parts[life]) for life in sorted(parts)}


def by_worker(batches: Sequence[TensorDictBase]) -> list[TensorDictBase]:
    """As `by_life`, in order of workers, if nobody has died."""
    lives = by_life(batches)
    dead = {worker for worker, life in lives if life > 0}
    assert not dead, f"workers {sorted(dead)} have died, or were seeded anew"
    return list(lives.values())


def life_of(trajectory: int) -> tuple[int, int]:
    """The worker and the life that a trajectory id names."""
    return trajectory >> WORKER_BITS, (trajectory >> LIFE_BITS) & (2 ** (WORKER_BITS - LIFE_BITS) - 1)


def per_frame(td: TensorDictBase, key: Key) -> Array:
    """An entry `[B, T, 1]` or `[B, T]` as an array `[B, T]`."""
    values: Array = td[key].reshape(td.batch_size).numpy()
    return values


def valid(td: TensorDictBase) -> Array:
    """Bool `[B, T]`: which rows are transitions."""
    return per_frame(td, MASK) if MASK in td.keys(include_nested=True) else np.ones(td.batch_size, dtype=np.bool_)


def observation_keys(td: TensorDictBase) -> list[Key]:
    """Entries that are there before and after a step."""
    after = td[NEXT].keys(include_nested=True, leaves_only=True)
    return [as_key(as_tuple(key)) for key in after if as_tuple(key)[-1] not in _OF_THE_STEP]


def check_flags(td: TensorDictBase) -> None:
    """An env is done when it has terminated, or is truncated, or both; no step begins in an end state."""
    done, ends = per_frame(td, (NEXT, DONE)), [per_frame(td, (NEXT, name)) for name in (TERMINATED, TRUNCATED)]
    _require(done == np.logical_or(*ends), "done is not (terminated or truncated)")
    for name in (DONE, TERMINATED, TRUNCATED):
        _require(~per_frame(td, name), f"the root entry {name!r} is set")


def check_continuity(td: TensorDictBase) -> None:
    """What a step led to is what the next step begins with, unless the episode ended there."""
    done, is_valid = per_frame(td, (NEXT, DONE)), valid(td)
    for key in observation_keys(td):
        before, after = td[key], td[(NEXT, *as_tuple(key))]
        for env in range(td.shape[0]):
            rows = np.flatnonzero(is_valid[env])
            for t, following in pairwise(rows):
                same = torch.equal(_bits(after[env, t]), _bits(before[env, following]))
                assert same or done[env, t], (
                    f"env {env}: ('next', {key!r}) at step {t} is {after[env, t]}, "
                    f"but step {following} of the same episode begins with {before[env, following]}"
                )


def check_ids(td: TensorDictBase) -> None:
    """Ids change behind every end, and count up in order of start, in env order at one moment; masked rows have -1."""
    ids, done, is_valid = per_frame(td, TRAJ_IDS), per_frame(td, (NEXT, DONE)), valid(td)
    expected, counter = np.full_like(ids, -1), int(ids[is_valid].min())
    running: list[int | None] = [None] * len(ids)
    for t in range(ids.shape[1]):
        for env in range(len(ids)):
            if is_valid[env, t]:
                if running[env] is None:
                    running[env], counter = counter, counter + 1
                expected[env, t] = running[env]
            if done[env, t] or not is_valid[env, t]:
                running[env] = None
    _require(ids == expected, "trajectory ids are not those of the episodes", ids, expected)


def same_data(one: TensorDictBase, other: TensorDictBase) -> None:
    """Two batches are equal bit for bit."""
    keys = [sorted(map(str, td.keys(include_nested=True, leaves_only=True))) for td in (one, other)]
    assert keys[0] == keys[1], f"the batches have different entries: {keys[0]} and {keys[1]}"
    for key, value in one.items(include_nested=True, leaves_only=True):
        theirs = other[key]
        assert value.shape == theirs.shape, f"{key!r} has the shapes {tuple(value.shape)} and {tuple(theirs.shape)}"
        assert value.dtype == theirs.dtype, f"{key!r} has the dtypes {value.dtype} and {theirs.dtype}"
        _require((_bits(value) == _bits(theirs)).numpy(), f"{key!r} differs")


def _bits(value: torch.Tensor) -> torch.Tensor:
    """NaN equals NaN, and 0 is not -0."""
    return value.contiguous().unsqueeze(-1).view(torch.uint8)


def _require(good: Any, what: str, got: Any = None, wanted: Any = None) -> None:
    if np.all(good):
        return
    where = tuple(int(index) for index in np.argwhere(~np.asarray(good))[0])
    detail = "" if got is None else f": {got[where]} instead of {wanted[where]}"
    raise AssertionError(f"{what}, first at {where}{detail}")
