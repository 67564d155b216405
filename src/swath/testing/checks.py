"""Checks of batches: each raises an `AssertionError` that names the first bad frame.

batches of one collector, in order ──▶ joined [B, T] ──▶ flags, continuity, ids; of counting envs: every single frame
recorded actions ──▶ a separate env ──▶ compared with the recorded frames
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
    """Join consecutive batches `[*B, Tᵢ]` of one worker to one, `[B, ΣTᵢ]`."""
    td: TensorDictBase = torch.cat(list(batches), dim=-1)
    return td.unsqueeze(0) if td.ndim == 1 else td.reshape(-1, td.shape[-1])


def by_life(batches: Sequence[TensorDictBase]) -> dict[tuple[int, int], TensorDictBase]:
    """Join batches of any number of workers to one `[B, ΣTᵢ]` for each worker and life.

    Ids tell the worker and life of a frame. The rows of one worker in a batch are its B envs.
    """
    parts: dict[tuple[int, int], list[TensorDictBase]] = {}
    for batch in batches:
        rows = joined([batch])
        lives = [worker_and_life(int(ids.max())) for ids in per_frame(rows, TRAJ_IDS)]
        for life in dict.fromkeys(lives):
            parts.setdefault(life, []).append(rows[[row for row, its_life in enumerate(lives) if its_life == life]])
    return {life: joined(parts[life]) for life in sorted(parts)}


def by_worker(batches: Sequence[TensorDictBase]) -> list[TensorDictBase]:
    """Join batches to one `[B, ΣTᵢ]` for each worker, in order; no worker may have died."""
    lives = by_life(batches)
    assert not any(life for _, life in lives), f"workers have died, or got new seeds: (worker, life) {[*lives]}"
    return list(lives.values())


def per_frame(td: TensorDictBase, key: Key) -> Array:
    """Return an entry `[B, T, 1]` or `[B, T]` as an array `[B, T]`."""
    values: Array = td[key].reshape(td.batch_size).numpy()
    return values


def valid(td: TensorDictBase) -> Array:
    """Return whether each row is a transition, bool `[B, T]`."""
    return per_frame(td, MASK) if MASK in td.keys(include_nested=True) else np.ones(td.batch_size, dtype=np.bool_)


# Any env


def check_flags(td: TensorDictBase) -> None:
    """Check that done is terminated or truncated, and that no step begins in an end state."""
    done, ends = per_frame(td, (NEXT, DONE)), [per_frame(td, (NEXT, name)) for name in (TERMINATED, TRUNCATED)]
    _require(done == np.logical_or(*ends), "done is not (terminated or truncated)")
    for name in (DONE, TERMINATED, TRUNCATED):
        _require(~per_frame(td, name), f"the root entry {name!r} is set")


def check_continuity(td: TensorDictBase) -> None:
    """Check that each step begins with the observation of the step before, unless the episode ended there."""
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
    """Check that ids change after every end, and grow in order of first steps, then of envs; masked rows have -1."""
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
    """Check that two batches are equal bit for bit."""
    first, second = (dict(td.items(include_nested=True, leaves_only=True)) for td in (one, other))
    assert first.keys() == second.keys(), f"the batches have different entries: {[*first]} and {[*second]}"
    for key, value in first.items():
        forms = [(tuple(tensor.shape), tensor.dtype) for tensor in (value, second[key])]
        assert forms[0] == forms[1], f"{key!r} has the shape and dtype {forms[0]} in one, {forms[1]} in the other"
        _require((_bits(value) == _bits(second[key])).numpy(), f"{key!r} differs")


def check_by_hand(env: gym.Env[Any, Any], seed: int | None, frames: TensorDictBase) -> None:
    """Check that recorded frames equal those of a plain loop over an env.

    Args:
        env: an env like the recorded one, with all its wrappers.
        seed: seed of the reset before the first frame; `None` if the env seeds itself.
        frames: `[T]`, from the first step after that reset on.

    Raises:
        AssertionError: the first difference.
    """
    leaves = observation_leaves(env.observation_space)
    actions = splitter(env.action_space)([frames[leaf.key].numpy() for leaf in action_leaves(env.action_space)])
    observation, _ = env.reset(seed=seed)
    for t, action in enumerate(actions):
        expected = _entries(leaves, observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        expected |= {(NEXT, *key): leaf for key, leaf in _entries(leaves, observation).items()}
        expected |= {(NEXT, REWARD): [np.float32(reward)], (NEXT, DONE): [terminated or truncated]}
        expected |= {(NEXT, TERMINATED): [terminated], (NEXT, TRUNCATED): [truncated]}
        for key, value in expected.items():
            recorded = frames[key][t].numpy()
            same = np.array_equal(recorded, value, equal_nan=recorded.dtype.kind == "f")
            assert same, f"step {t}: {key!r} is {value} in a plain loop, recorded {recorded}"
        if terminated or truncated:
            observation, _ = env.reset()


def _entries(leaves: Sequence[Leaf], observation: Any) -> dict[tuple[str, ...], Any]:
    values = [np.asarray(reduce(getitem, leaf.path, observation)).astype(leaf.dtype) for leaf in leaves]
    return {as_tuple(leaf.key): value for leaf, value in zip(leaves, values, strict=True)}


# Counting envs: no frame is lost, repeated, changed or mixed with another


def marks_of(td: TensorDictBase, counting: Counting, *, following: bool = False) -> Array:
    """Return the marks `[*B, T, 3]` in the observations of a batch; all leaves must have the same."""
    prefix = (NEXT,) if following else ()
    leaves = observation_leaves(counting.observation_space)
    first, *others = (read(leaf.space, td[(*prefix, *as_tuple(leaf.key))]) for leaf in leaves)
    for leaf, marks in zip(leaves[1:], others, strict=True):
        same = (marks == first)[valid(td)].all()
        assert same, f"{leaf.key!r} has another mark than {leaves[0].key!r}: rows were mixed"
    return first


def _steps(td: TensorDictBase, counting: Counting) -> Iterator[tuple[int, int, Mark, Mark]]:
    """Yield row, time, and the marks before and after, of each transition of `[B, T]`, row by row."""
    marks, next_marks = marks_of(td, counting), marks_of(td, counting, following=True)
    for row, t in np.argwhere(valid(td)):
        before, after = Mark(*marks[row, t].tolist()), Mark(*next_marks[row, t].tolist())
        wanted = before._replace(step=before.step + 1)
        assert after == wanted, f"row {row}, step {t}: a step from {before} leads to {wanted}, the batch has {after}"
        yield int(row), int(t), before, after


def check_counted(td: TensorDictBase, counting: Counting, *, max_frames: int | None = None) -> None:
    """Check consecutive batches of counting envs, joined to one `[B, T]`, row by row.

    Args:
        td: the batches.
        counting: properties of the envs.
        max_frames: the collector's step limit, if there is one.
    """
    terminated, truncated, done = (per_frame(td, (NEXT, name)) for name in (TERMINATED, TRUNCATED, DONE))
    rewards = per_frame(td, (NEXT, REWARD))
    actions = [td[leaf.key].numpy().astype(leaf.dtype) for leaf in action_leaves(counting.action_space)]
    expected: dict[int, Mark] = {}
    rows: dict[int, int] = {}
    for row, t, before, after in _steps(td, counting):
        place = f"row {row}, step {t}"
        expected_mark = expected.get(row, before)
        assert before == expected_mark, f"{place}: {expected_mark} must follow the step before, the batch has {before}"
        assert rows.setdefault(before.env, row) == row, f"{place}: two rows are of the same env {before.env}"
        if isinstance(counting.script, Script):
            plan = counting.script.plan(after.env, after.episode)
            ends = plan.flags if after.step == plan.length else (False, False)
            ends, actual = (ends[0], ends[1] or after.step == max_frames), (terminated[row, t], truncated[row, t])
            assert actual == ends, f"{place}: (terminated, truncated) is {actual}; {after} of {plan} ends with {ends}"
        reward = reward_of(after, [leaf[row, t] for leaf in actions])
        assert rewards[row, t] == reward, f"{place}: reward {rewards[row, t]}; {after} and its action give {reward}"
        expected[row] = Mark(after.env, after.episode + 1, 0) if done[row, t] else after


def check_lives(batches: Sequence[TensorDictBase], counting: Counting, *, gaps: bool = False) -> None:
    """Check batches of counting envs whose workers may have died in between.

    No frame is repeated or mixed with another, and the frames of each life have no gap from the beginning of an episode
    on: an unfinished fragment of a life that ended is not delivered in part.

    Args:
        batches: batches in any order, of any number of workers.
        counting: properties of the envs.
        gaps: frames may be missing, of fragments that were dropped or broken by an exception.
    """
    lives: dict[tuple[int, int, int], set[Mark]] = {}
    for batch in batches:
        rows = joined([batch])
        ids = per_frame(rows, TRAJ_IDS)
        for env, t, mark, _ in _steps(rows, counting):
            frames = lives.setdefault((*worker_and_life(int(ids[env, t])), mark.env), set())
            assert mark not in frames, f"{mark} is there twice"
            frames.add(mark)
    for life, frames in lives.items() if not gaps else ():
        first, *_ = in_order = sorted(frames)
        assert first.step == 0, f"the first frame of (worker, life, env) {life} is {first}"
        for mark, after in pairwise(in_order):
            follows = after in (mark._replace(step=mark.step + 1), Mark(mark.env, mark.episode + 1, 0))
            assert follows, f"of {life}: after {mark} comes {after}"


def _bits(value: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, for comparisons in which NaN equals NaN, and 0 is not -0."""
    return value.contiguous().unsqueeze(-1).view(torch.uint8)


def _require(good: Any, message: str, got: Any = None, wanted: Any = None) -> None:
    if np.all(good):
        return
    index = tuple(int(position) for position in np.argwhere(~np.asarray(good))[0])
    detail = "" if got is None else f": {got[index]} instead of {wanted[index]}"
    raise AssertionError(f"{message}, first at {index}{detail}")
