"""What must be true of batches: each check raises an `AssertionError` that says where it is not.

batches of one collector, in order ──▶ joined [B, T] ──▶ flags, continuity, ids; of counting envs: every single frame
recorded actions ──▶ an env of one's own ──▶ compared with the recorded frames
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise
from operator import getitem
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDictBase

from swath.keys import DONE, MASK, NEXT, REWARD, TERMINATED, TRAJ_IDS, TRUNCATED, Key, as_tuple
from swath.rollout.episodes.statistics import worker_and_life
from swath.rollout.spaces import Array, Leaf, action_leaves, observation_leaves, splitter
from swath.testing.counting import Counting, Script, read, reward_of
from swath.testing.faults import Mark

# Batches of several workers


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
        lives = [worker_and_life(int(ids.max())) for ids in per_frame(rows, TRAJ_IDS)]
        for life in dict.fromkeys(lives):
            parts.setdefault(life, []).append(rows[[row for row, one in enumerate(lives) if one == life]])
    return {life: joined(parts[life]) for life in sorted(parts)}


def by_worker(batches: Sequence[TensorDictBase]) -> list[TensorDictBase]:
    """As `by_life`, in order of workers, if nobody has died."""
    lives = by_life(batches)
    assert not any(life for _, life in lives), f"workers have died, or were seeded anew: (worker, life) {[*lives]}"
    return list(lives.values())


def per_frame(td: TensorDictBase, key: Key) -> Array:
    """An entry `[B, T, 1]` or `[B, T]` as an array `[B, T]`."""
    values: Array = td[key].reshape(td.batch_size).numpy()
    return values


def valid(td: TensorDictBase) -> Array:
    """Bool `[B, T]`: which rows are transitions."""
    return per_frame(td, MASK) if MASK in td.keys(include_nested=True) else np.ones(td.batch_size, dtype=np.bool_)


# Whatever the env


def check_flags(td: TensorDictBase) -> None:
    """An env is done when it has terminated, or is truncated, or both; no step begins in an end state."""
    done, ends = per_frame(td, (NEXT, DONE)), [per_frame(td, (NEXT, name)) for name in (TERMINATED, TRUNCATED)]
    _require(done == np.logical_or(*ends), "done is not (terminated or truncated)")
    for name in (DONE, TERMINATED, TRUNCATED):
        _require(~per_frame(td, name), f"the root entry {name!r} is set")


def check_continuity(td: TensorDictBase) -> None:
    """What a step led to is what the next step begins with, unless the episode ended there."""
    done = per_frame(td, (NEXT, DONE))
    leaves = (as_tuple(key) for key in td[NEXT].keys(include_nested=True, leaves_only=True))
    for path in (leaf for leaf in leaves if leaf[-1] not in (REWARD, DONE, TERMINATED, TRUNCATED)):
        before, after = _bits(td[path]), _bits(td[(NEXT, *path)])
        for env, is_valid in enumerate(valid(td)):
            for t, following in pairwise(np.flatnonzero(is_valid)):
                assert done[env, t] or torch.equal(after[env, t], before[env, following]), (
                    f"env {env}: {(NEXT, *path)} at step {t} is {td[(NEXT, *path)][env, t]}, "
                    f"but step {following} of the same episode begins with {td[path][env, following]}"
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
    mine, theirs = (dict(td.items(include_nested=True, leaves_only=True)) for td in (one, other))
    assert mine.keys() == theirs.keys(), f"the batches have different entries: {[*mine]} and {[*theirs]}"
    for key, value in mine.items():
        here, there = ((tuple(each.shape), each.dtype) for each in (value, theirs[key]))
        assert here == there, f"{key!r} has the shape and dtype {here} in one, {there} in the other"
        _require((_bits(value) == _bits(theirs[key])).numpy(), f"{key!r} differs")


def check_by_hand(env: gym.Env[Any, Any], seed: int | None, frames: TensorDictBase) -> None:
    """Check that recorded frames are what stepping by hand gives: the loop that a user would write.

    Args:
        env: an env like the recorded one, with all its wrappers.
        seed: what the recorded one was reset with before the first frame; `None` if it seeds itself.
        frames: `[T]`, from the first step after that reset on.

    Raises:
        AssertionError: the first difference.
    """
    leaves = observation_leaves(env.observation_space)
    actions = splitter(env.action_space)([frames[leaf.key].numpy() for leaf in action_leaves(env.action_space)])
    observation, _ = env.reset(seed=seed)
    for t, action in enumerate(actions):
        by_hand = _observed(leaves, observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        by_hand |= {(NEXT, *key): leaf for key, leaf in _observed(leaves, observation).items()}
        by_hand |= {(NEXT, REWARD): [np.float32(reward)], (NEXT, DONE): [terminated or truncated]}
        by_hand |= {(NEXT, TERMINATED): [terminated], (NEXT, TRUNCATED): [truncated]}
        for key, value in by_hand.items():
            recorded = frames[key][t].numpy()
            same = np.array_equal(recorded, value, equal_nan=recorded.dtype.kind == "f")
            assert same, f"step {t}: {key!r} is {value} by hand, recorded {recorded}"
        if terminated or truncated:
            observation, _ = env.reset()


def _observed(leaves: Sequence[Leaf], observation: Any) -> dict[tuple[str, ...], Any]:
    return {as_tuple(one.key): np.asarray(reduce(getitem, one.path, observation)).astype(one.dtype) for one in leaves}


# Of counting envs: no frame is lost, repeated, changed or mixed with another


def marks_of(td: TensorDictBase, counting: Counting, *, following: bool = False) -> Array:
    """The marks `[*B, T, 3]` that the observations of a batch say; all leaves must say the same."""
    under = (NEXT,) if following else ()
    leaves = observation_leaves(counting.observation_space)
    first, *others = (read(leaf.space, td[(*under, *as_tuple(leaf.key))]) for leaf in leaves)
    for leaf, marks in zip(leaves[1:], others, strict=True):
        same = (marks == first)[valid(td)].all()
        assert same, f"{leaf.key!r} says another mark than {leaves[0].key!r}: rows were mixed"
    return first


def _steps(td: TensorDictBase, counting: Counting) -> Iterator[tuple[int, int, Mark, Mark]]:
    """Row, time, and the marks before and after, of each transition of `[B, T]`, row by row."""
    before, after = marks_of(td, counting), marks_of(td, counting, following=True)
    for row, t in np.argwhere(valid(td)):
        here, there = Mark(*before[row, t].tolist()), Mark(*after[row, t].tolist())
        wanted = here._replace(step=here.step + 1)
        assert there == wanted, f"row {row}, step {t}: a step from {here} leads to {wanted}, the batch says {there}"
        yield int(row), int(t), here, there


def check_counted(td: TensorDictBase, counting: Counting, *, max_frames: int | None = None) -> None:
    """Check consecutive batches of counting envs, joined to one `[B, T]`, row by row.

    Args:
        td: the batches.
        counting: what the envs are like.
        max_frames: the step limit, if one was set beside the envs' own.
    """
    terminated, truncated, done = (per_frame(td, (NEXT, name)) for name in (TERMINATED, TRUNCATED, DONE))
    rewards = per_frame(td, (NEXT, REWARD))
    actions = [td[leaf.key].numpy().astype(leaf.dtype) for leaf in action_leaves(counting.action_space)]
    expected: dict[int, Mark] = {}
    rows: dict[int, int] = {}
    for row, t, here, there in _steps(td, counting):
        at = f"row {row}, step {t}"
        wanted = expected.get(row, here)
        assert here == wanted, f"{at}: after the one before comes {wanted}, the batch says {here}"
        assert rows.setdefault(here.env, row) == row, f"{at}: two rows are of the same env {here.env}"
        if isinstance(counting.script, Script):
            plan = counting.script.plan(there.env, there.episode)
            ends = plan.flags if there.step == plan.length else (False, False)
            ends, got = (ends[0], ends[1] or there.step == max_frames), (terminated[row, t], truncated[row, t])
            assert got == ends, f"{at}: (terminated, truncated) is {got}; {there} of {plan} ends with {ends}"
        reward = reward_of(there, [leaf[row, t] for leaf in actions])
        assert rewards[row, t] == reward, f"{at}: reward {rewards[row, t]}; {there} and its action give {reward}"
        expected[row] = Mark(there.env, there.episode + 1, 0) if done[row, t] else there


def check_lives(batches: Sequence[TensorDictBase], counting: Counting, *, gaps: bool = False) -> None:
    """Check batches of counting envs whose workers may have died in between.

    No frame is there twice, none is mixed with another, and what one life made is there without a gap from the begin
    of an episode on: what a life was making when it ended is not there in part.

    Args:
        batches: in any order, of any number of workers.
        counting: what the envs are like.
        gaps: frames may be missing, as fragments do that were dropped or broken by an exception.
    """
    made: dict[tuple[int, int, int], set[Mark]] = {}
    for batch in batches:
        rows = joined([batch])
        ids = per_frame(rows, TRAJ_IDS)
        for env, t, here, _ in _steps(rows, counting):
            frames = made.setdefault((*worker_and_life(int(ids[env, t])), here.env), set())
            assert here not in frames, f"{here} is there twice"
            frames.add(here)
    for life, frames in made.items() if not gaps else ():
        first, *_ = in_order = sorted(frames)
        assert first.step == 0, f"the first frame of (worker, life, env) {life} is {first}"
        for one, other in pairwise(in_order):
            follows = other in (one._replace(step=one.step + 1), Mark(one.env, one.episode + 1, 0))
            assert follows, f"of {life}: after {one} comes {other}"


def _bits(value: torch.Tensor) -> torch.Tensor:
    """NaN equals NaN, and 0 is not -0."""
    return value.contiguous().unsqueeze(-1).view(torch.uint8)


def _require(good: Any, what: str, got: Any = None, wanted: Any = None) -> None:
    if np.all(good):
        return
    where = tuple(int(index) for index in np.argwhere(~np.asarray(good))[0])
    detail = "" if got is None else f": {got[where]} instead of {wanted[where]}"
    raise AssertionError(f"{what}, first at {where}{detail}")
