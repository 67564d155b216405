"""What must be true of batches of counting envs: no frame is lost, repeated, changed or mixed with another.

entries ──▶ marks [B, T, 3] before and after each step ──▶ compared with what counting gives
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from tensordict import TensorDictBase

from swath.keys import DONE, NEXT, REWARD, TERMINATED, TRAJ_IDS, TRUNCATED, Key, as_tuple
from swath.rollout.spaces import Array, action_leaves, observation_leaves
from swath.testing.checks import joined, life_of, per_frame, valid
from swath.testing.counting_env import Counting, reward_of
from swath.testing.marks import Mark, leaf_spaces, read
from swath.testing.script import Plan, Script


def check_counted(td: TensorDictBase, counting: Counting, *, max_frames: int | None = None) -> None:
    """Check consecutive batches of counting envs, joined to one `[B, T]`, row by row.

    Args:
        td: the batches.
        counting: what the envs are like.
        max_frames: the step limit, if one was set beside the envs' own.
    """
    before, after = marks_of(td, counting), marks_of(td, counting, following=True)
    flags = [per_frame(td, (NEXT, name)) for name in (TERMINATED, TRUNCATED, DONE)]
    is_valid, rewards = valid(td), per_frame(td, (NEXT, REWARD))
    actions = _actions(td, counting)
    for env in range(td.shape[0]):
        last: tuple[Mark, bool] | None = None
        for t in np.flatnonzero(is_valid[env]):
            here, there = Mark(*before[env, t].tolist()), Mark(*after[env, t].tolist())
            at = f"row {env}, step {t}"
            _check_step(at, last, here, there)
            terminated, truncated, done = (bool(flag[env, t]) for flag in flags)
            if isinstance(counting.script, Script):
                plan = counting.script.plan(there.env, there.episode)
                _check_end(at, plan, there, (terminated, truncated), max_frames)
            reward = reward_of(there, [leaf[env, t] for leaf in actions])
            assert rewards[env, t] == reward, f"{at}: reward {rewards[env, t]}; {there} and its action give {reward}"
            last = there, done
    envs = {row[ok][0, 0] for row, ok in zip(before, is_valid, strict=True) if ok.any()}
    assert len(envs) == sum(ok.any() for ok in is_valid), f"two rows are of the same env: {sorted(envs)}"


def check_lives(batches: Sequence[TensorDictBase], counting: Counting, *, gaps: bool = False) -> None:
    """Check batches of counting envs whose workers may have died in between.

    No frame is there twice, none is mixed with another, and what one life made is there without a gap from the begin
    of an episode on: what a life was making when it ended is not there in part.

    Args:
        batches: in any order, of any number of workers.
        counting: what the envs are like.
        gaps: frames may be missing, as fragments do that were dropped or broken by an exception.
    """
    made: dict[tuple[Any, ...], dict[Mark, Mark]] = {}
    for batch in batches:
        rows = joined([batch])
        before, after = marks_of(rows, counting), marks_of(rows, counting, following=True)
        ids = per_frame(rows, TRAJ_IDS)
        for env, t in np.argwhere(valid(rows)):
            here, there = Mark(*before[env, t].tolist()), Mark(*after[env, t].tolist())
            frames = made.setdefault((*life_of(int(ids[env, t])), here.env), {})
            assert there == here._replace(step=here.step + 1), f"a step from {here} does not lead to {there}"
            assert here not in frames, f"{here} is there twice"
            frames[here] = there
    for life, frames in made.items():
        if not gaps:
            _check_no_gap(life, sorted(frames))


def _check_no_gap(life: tuple[Any, ...], frames: list[Mark]) -> None:
    env = frames[0].env
    assert frames[0].step == 0, f"the first frame of (worker, life, env) {life} is {frames[0]}"
    for one, other in pairwise(frames):
        begins = Mark(env, one.episode + 1, 0)
        assert other in (one._replace(step=one.step + 1), begins), f"of {life}: after {one} comes {other}"


def marks_of(td: TensorDictBase, counting: Counting, *, following: bool = False) -> Array:
    """The marks `[*B, T, 3]` that the observations of a batch say; all leaves must say the same."""
    space = counting.observation_space
    said: dict[Key, Array] = {}
    for leaf, part in zip(observation_leaves(space), leaf_spaces(space), strict=True):
        said[leaf.key] = read(part, td[(NEXT, *as_tuple(leaf.key)) if following else leaf.key])
    first, is_valid = next(iter(said.values())), valid(td)
    for key, values in said.items():
        assert (values == first)[is_valid].all(), (
            f"{key!r} says another mark than {next(iter(said))!r}: rows were mixed"
        )
    return first


def _actions(td: TensorDictBase, counting: Counting) -> list[Any]:
    """Action leaves `[B, T, …]` as the env got them."""
    return [td[leaf.key].numpy().astype(leaf.dtype) for leaf in action_leaves(counting.action_space)]


def _check_step(at: str, last: tuple[Mark, bool] | None, here: Mark, there: Mark) -> None:
    wanted = here._replace(step=here.step + 1)
    assert there == wanted, f"{at}: a step from {here} leads to {wanted}, the batch says {there}"
    if last is not None:
        mark, done = last
        begins = Mark(mark.env, mark.episode + 1, 0) if done else mark
        assert here == begins, f"{at}: after {mark} ({done=}) comes {begins}, the batch says {here}"


def _check_end(at: str, plan: Plan, there: Mark, got: tuple[bool, bool], max_frames: int | None) -> None:
    terminated, truncated = plan.flags if there.step == plan.length else (False, False)
    wanted = (terminated, truncated or there.step == max_frames)
    assert got == wanted, f"{at}: (terminated, truncated) is {got}; {there} of {plan} ends with {wanted}"
