"""Envs that count: every observation says which env, episode and step it is of, every reward which action got there."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from swath.rollout.spaces import Array, action_leaves
from swath.testing.faults import EnvBroke, Fault, Faults, Mishaps, with_more, with_nan
from swath.testing.marks import OBSERVATIONS, Mark, write
from swath.testing.script import Plan, Planner, Script


@dataclass(frozen=True)
class Counting:
    """What counting envs are like.

    Attributes:
        observation: a name of `OBSERVATIONS`, or a space composed of their leaves.
        action_space: any served space; actions outside it are refused.
        script: how long episodes last and how they end.
        in_place: the env returns the same arrays from every step, written anew.
    """

    observation: str | spaces.Space[Any] = "vector"
    action_space: spaces.Space[Any] = field(default_factory=lambda: spaces.Discrete(3))
    script: Planner = field(default_factory=Script)
    in_place: bool = False

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The space itself."""
        return OBSERVATIONS[self.observation] if isinstance(self.observation, str) else self.observation


class CountingEnv(gym.Env[Any, Any]):
    """An env whose data name themselves, and which refuses to be misused.

    Its observations are marks (see `swath.testing.marks`), its rewards `reward_of(mark, action)`. Stepping it before a
    reset or after an end is a `RuntimeError`, as is an action outside its space a `TypeError`.

    Args:
        number: which env it is.
        counting: what it is like.
        faults: what goes wrong in it, or what of that is still to come.
        render_mode: `"rgb_array"` or `None`.

    Attributes:
        mark: what it has last observed.
        plan: of the present episode; `None` between episodes.
        seeds: what it was reset with, one per reset.
        closed: how often it was closed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  gymnasium's own declaration

    def __init__(
        self,
        number: int = 0,
        counting: Counting | None = None,
        faults: Iterable[Fault] | Mishaps = (),
        render_mode: str | None = None,
    ) -> None:
        self.counting = counting or Counting()
        self.observation_space = self.counting.observation_space
        self.action_space = self.counting.action_space
        self.render_mode = render_mode
        self.mark = Mark(number, -1, 0)
        self.plan: Plan | None = None
        self.seeds: list[int | None] = []
        self.closed = 0
        self._mishaps = faults if isinstance(faults, Mishaps) else Mishaps(faults)
        self._kept: Any = None
        write(self.observation_space, Mark(number, 0, 0))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed, options=options)
        number, episode = self.mark.env, self.mark.episode + 1
        if self._mishaps.due("raise_at_reset", episode):
            raise EnvBroke(f"env {number} raised at the reset of episode {episode}")
        self.seeds.append(seed)
        self.plan = self.counting.script.plan(number, episode, self.np_random)
        self.mark = Mark(number, episode, 0)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        if self.plan is None:
            raise RuntimeError(f"env {self.mark.env} was stepped before a reset, or after the end of {self.mark}")
        if not self.action_space.contains(action):
            raise TypeError(f"env {self.mark.env} got the action {action!r}; {self.action_space} wants another")
        number, episode, step = self.mark._replace(step=self.mark.step + 1)
        if self._mishaps.begin_step(episode, step):
            raise EnvBroke(f"env {number} raised at step {step} of episode {episode}")
        self.mark = Mark(number, episode, step)
        reward = reward_of(self.mark, [_follow(action, leaf.path) for leaf in action_leaves(self.action_space)])
        if self._mishaps.due("nan_reward", episode, step):
            reward = float("nan")
        terminated, truncated = self.plan.flags if step == self.plan.length else (False, False)
        if terminated or truncated:
            self.plan = None
        return self._observe(), reward, terminated, truncated, {}

    def render(self) -> Any:
        """A small frame whose grey is the step."""
        return np.full((8, 8, 3), self.mark.step % 256, dtype=np.uint8)

    def close(self) -> None:
        """Count the closings."""
        self.closed += 1
        if self._mishaps.due("raise_at_close"):
            raise EnvBroke(f"env {self.mark.env} raised when it was closed")

    def _observe(self) -> Any:
        observation = write(self.observation_space, self.mark)
        if self._mishaps.due("nan", self.mark.episode, self.mark.step):
            observation = with_nan(observation)
        if self._mishaps.due("shape", self.mark.episode, self.mark.step):
            return with_more(observation)
        if not self.counting.in_place:
            return observation
        self._kept = observation if self._kept is None else _overwritten(self._kept, observation)
        return self._kept


class CountingEnvs:
    """A factory that numbers the envs it builds 0, 1, 2, … in the order of its calls.

    Args:
        counting: what they are like.
        faults: what goes wrong, by env number.
        first: the number of the first env.

    Attributes:
        made: the envs built so far, in order.
    """

    def __init__(self, counting: Counting | None = None, faults: Faults | None = None, first: int = 0) -> None:
        self.counting = counting or Counting()
        self.faults = dict(faults or {})
        self.made: list[CountingEnv] = []
        self._next = first
        self._home = os.getpid()

    def __call__(self) -> CountingEnv | None:
        """The next env."""
        number, self._next = self._next, self._next + 1
        mishaps = Mishaps(self.faults.get(number, ()), self._home)
        if mishaps.due("raise_at_build"):
            raise EnvBroke(f"env {number} could not be built")
        if mishaps.due("build_nothing"):
            return None
        self.made.append(CountingEnv(number, self.counting, mishaps))
        return self.made[-1]


def reward_of(mark: Mark | Sequence[int], action: Sequence[Any]) -> float:
    """The reward of the step that led to `mark`, by the leaves of the action; exact in float32.

    Args:
        mark: of the next observation.
        action: one value per action leaf, in its space's dtype.
    """
    env, episode, step = (int(part) for part in mark)
    said = zlib.crc32(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in action))
    return (31 * env + 7 * episode + step + said) % 1024 / 8


def _follow(value: Any, path: Iterable[Any]) -> Array:
    for part in path:
        value = value[part]
    return np.asarray(value)


def _overwritten(kept: Any, fresh: Any) -> Any:
    if isinstance(kept, dict):
        return {name: _overwritten(kept[name], part) for name, part in fresh.items()}
    if isinstance(kept, tuple):
        return tuple(_overwritten(old, new) for old, new in zip(kept, fresh, strict=True))
    if kept.shape == ():
        return fresh
    kept[...] = fresh
    return kept
