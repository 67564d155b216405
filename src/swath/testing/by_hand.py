"""The loop that a user would write, as the judge of what a collector did: the same actions in an env of its own.

recorded actions ──▶ env.step, env.reset where it ended ──▶ compared with the recorded frames
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from tensordict import TensorDictBase

from swath.keys import DONE, NEXT, REWARD, TERMINATED, TRUNCATED, as_tuple
from swath.rollout.spaces import Array, action_leaves, observation_leaves


def check_by_hand(env: gym.Env[Any, Any], seed: int | None, frames: TensorDictBase) -> None:
    """Check that recorded frames are what stepping by hand gives.

    Args:
        env: an env like the recorded one, with all its wrappers.
        seed: what the recorded one was reset with before the first frame; `None` if it seeds itself.
        frames: `[T]`, from the first step after that reset on.

    Raises:
        AssertionError: the first difference.
    """
    observation, _ = env.reset(seed=seed)
    for t in range(len(frames)):
        _check_observation(env, t, "", observation, frames)
        observation, reward, terminated, truncated, _ = env.step(action_at(env.action_space, frames, t))
        _check_observation(env, t, NEXT, observation, frames)
        recorded = frames[NEXT, REWARD][t].item()
        assert np.float32(reward) == np.float32(recorded), f"step {t}: reward {reward} by hand, recorded {recorded}"
        for name, flag in ((TERMINATED, terminated), (TRUNCATED, truncated), (DONE, terminated or truncated)):
            got = frames[NEXT, name][t].item()
            assert got == bool(flag), f"step {t}: {name} is {bool(flag)} by hand, recorded {got}"
        if terminated or truncated:
            observation, _ = env.reset()


def action_at(space: spaces.Space[Any], frames: TensorDictBase, t: int) -> Any:
    """The action of one recorded frame, as an env of this action space takes it."""
    return _assembled(space, iter([frames[leaf.key][t].numpy() for leaf in action_leaves(space)]))


def _assembled(space: spaces.Space[Any], values: Iterator[Array]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _assembled(part, values) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_assembled(part, values) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(next(values))
    return np.asarray(next(values)).astype(space.dtype)


def _check_observation(env: gym.Env[Any, Any], t: int, under: str, observation: Any, frames: TensorDictBase) -> None:
    for leaf in observation_leaves(env.observation_space):
        value = observation
        for part in leaf.path:
            value = value[part]
        key = (under, *as_tuple(leaf.key)) if under else leaf.key
        recorded, by_hand = frames[key][t].numpy(), np.asarray(value).astype(leaf.dtype)
        assert np.array_equal(recorded, by_hand, equal_nan=leaf.dtype.kind == "f"), (
            f"step {t}: {key!r} is {by_hand} by hand, recorded {recorded}"
        )
