"""Whether an env that begins its next episode by itself does so as it says, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from swath.doctor.finding import Finding, Level
from swath.doctor.subject import Subject, is_batched
from swath.doctor.walk import Moment, is_over, walk
from swath.rollout.hosts.vector_reset import mode_of
from swath.rollout.spaces import Array

WHAT = "autoreset"
LAST = ("final_obs", "final_observation", "terminal_observation")
"""Where envs that have reset themselves keep an episode's last observation."""

SAME_STEP = 'gymnasium.make_vec(…, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})'


class Row(NamedTuple):
    """One step of a vector env, as far as resets go.

    Attributes:
        over: bool `[B]`: where episodes ended.
        reward: `[B]`.
        kept: whether info has the last observations of episodes.
    """

    over: Array
    reward: Array
    kept: bool


def check_autoreset(subject: Subject) -> Iterator[Finding]:
    """What happens at the ends of episodes."""
    env = subject.make()
    try:
        if is_batched(env):
            moments = walk(env, subject.effort, subject.seed)
            yield from batched(env, mode_of(env), [row(moment) for moment in moments if moment.call == "step"])
        else:
            yield from alone(walk(env, subject.effort, subject.seed))
    finally:
        subject.done_with(env)


def undeclared(env: Any) -> Iterator[Finding]:
    """A vector env must say when it begins the next episode; else no other look at it makes sense."""
    try:
        if is_batched(env):
            mode_of(env)
    except ValueError:
        said = repr(env.metadata.get("autoreset_mode"))
        move = 'set metadata = {"autoreset_mode": AutoresetMode.SAME_STEP} (or what it does) in its class'
        yield Finding(Level.ERROR, WHAT, said, f"one of {[mode.value for mode in AutoresetMode]}", move)


def row(moment: Moment) -> Row:
    """A step in short."""
    _, reward, terminated, truncated, info = moment.answer
    return Row(np.logical_or(terminated, truncated), np.asarray(reward), "final_obs" in info)


def alone(moments: Iterator[Moment]) -> Iterator[Finding]:
    """A single env leaves it to others to reset it."""
    for moment in moments:
        info = moment.answer[-1]
        kept = [name for name in LAST if isinstance(info, Mapping) and name in info]
        if moment.call == "step" and is_over(moment.answer) and kept:
            yield Finding(
                Level.ERROR,
                WHAT,
                f"the step that ends an episode returns the next one's first observation (info has {kept[0]!r})",
                "the episode's last observation",
                "leave the resets to the collector: take the wrapper that resets away",
            )
            return


def batched(env: Any, mode: AutoresetMode, rows: Sequence[Row]) -> Iterator[Finding]:
    """What a vector env says of its resets, and what it does."""
    if mode is AutoresetMode.SAME_STEP:
        yield from _same_step(rows)
    elif mode is AutoresetMode.NEXT_STEP:
        yield from _next_step(env, rows)


def _same_step(rows: Sequence[Row]) -> Iterator[Finding]:
    if any(one.over.any() and not one.kept for one in rows):
        yield Finding(
            Level.ERROR,
            WHAT,
            "SAME_STEP, but info has no 'final_obs' where an episode ends",
            "the episode's last observation in info['final_obs']",
            "put it there, or declare and do NEXT_STEP or DISABLED",
        )


def _next_step(env: Any, rows: Sequence[Row]) -> Iterator[Finding]:
    over = sum(int(one.over.sum()) for one in rows)
    if surprise := _surprise(rows):
        yield Finding(
            Level.ERROR,
            WHAT,
            f"its metadata say NEXT_STEP, but {surprise}",
            "an end without 'final_obs', then a step that only resets: reward 0, not done",
            "declare what the env does, such as AutoresetMode.SAME_STEP, or do what it declares: transitions are lost "
            "or mixed up as it is",
        )
    elif over:
        yield Finding(
            Level.WARNING,
            WHAT,
            f"NEXT_STEP: {over} of {len(rows) * env.num_envs:,} rows only reset and are no transitions",
            "SAME_STEP or DISABLED, where every row is one",
            f'{_way(env)}; else leave out of losses what batch["collector", "mask"] leaves out',
        )


def _way(env: Any) -> str:
    """To another mode; vector envs with a code of their own take no such argument."""
    has_choice = isinstance(getattr(env, "unwrapped", env), SyncVectorEnv | AsyncVectorEnv)
    return f"make it so: {SAME_STEP}" if has_choice else "change what its class does, if it is yours"


def _surprise(rows: Sequence[Row]) -> str | None:
    """What does not go with an env that resets within the step after an end."""
    if any(one.over.any() and one.kept for one in rows):
        return "info has 'final_obs' where an episode ends: it resets in the same step"
    for before, after in pairwise(rows):
        if after.over[before.over].any():
            return "the step after an end is an end, too"
        rewards = after.reward[before.over]
        if rewards.any():
            return f"the step after an end has the reward {rewards[rewards != 0][0]:g}"
    return None
