"""Counting envs: every observation encodes its env, episode and step, and every reward the action before it.

    Mark(env, episode, step) ──▶ write(space, mark) ──▶ env ──▶ batch ──▶ read(space, entry) ──▶ [..., 3]

Every leaf of a space has the whole mark, so that a mix-up of envs, rows or leaves can be detected.

Lives of workers are data, too: `{0: [[Fault("kill", step=3)], []]}` is a worker that dies at step 3 of its first life,
and has no fault in the next.

    Lives(directory, script) ─▶ sources(W) ─▶ one env source per worker ─▶ built in life 0, 1, … with that life's faults
                └── one empty file for every env that was built, in any process
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from swath.rollout.spaces import Array, action_leaves, observation_leaves
from swath.testing.faults import EnvBroke, Fault, FaultInjector, Faults, FaultyEnv, Mark

# Observations

_SIZES = np.array([2**8, 2**16, 2**20])
"""Limits of envs, episodes and steps; together they are one number of 44 bits, or 6 bytes."""

_N_BITS, _N_BYTES = 44, 6


def _vector(dtype: Any) -> spaces.Box:
    return spaces.Box(np.zeros(3, dtype), _SIZES.astype(dtype), dtype=dtype)


_FLOAT32, _FLOAT64, _IMAGE = _vector(np.float32), _vector(np.float64), spaces.Box(0, 255, (_N_BYTES, 2, 3), np.uint8)

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": _FLOAT32,
    "float64": _FLOAT64,
    "image": _IMAGE,
    "discrete": spaces.Discrete(2**_N_BITS, start=3),
    "multi_discrete": spaces.MultiDiscrete(_SIZES),
    "multi_binary": spaces.MultiBinary(_N_BITS),
    "dict": spaces.Dict({"image": _IMAGE, "place": _FLOAT32}),
    "tuple": spaces.Tuple((_FLOAT32, spaces.Discrete(2**_N_BITS))),
    "nested": spaces.Dict(
        {
            "camera": spaces.Dict({"left": _IMAGE, "right": _IMAGE}),
            "state": spaces.Tuple((_FLOAT64, spaces.Dict({"bits": spaces.MultiBinary(_N_BITS)}))),
        }
    ),
}
"""Spaces that can hold marks, by name; Dict and Tuple spaces of their leaves can, too."""


def write(space: spaces.Space[Any], mark: Mark) -> Any:
    """Encode a mark as an observation of this space.

    Raises:
        ValueError: the mark is too large.
    """
    if isinstance(space, spaces.Dict):
        return {name: write(part, mark) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(write(part, mark) for part in space.spaces)
    code = int(np.ravel_multi_index(mark, _SIZES))
    if isinstance(space, spaces.Discrete):
        return space.start + code
    if isinstance(space, spaces.MultiBinary):
        return (code >> np.arange(_N_BITS) & 1).astype(np.int8)
    if space.dtype == np.uint8:
        channels = np.frombuffer(code.to_bytes(_N_BYTES, "little"), np.uint8).reshape(-1, 1, 1)
        return np.broadcast_to(channels, space.shape or ()).copy()
    return np.array(mark, dtype=space.dtype)


def read(space: spaces.Space[Any], entry: Any) -> Array:
    """Decode marks `[..., 3]` from the batch entry `[..., *shape]` of a leaf.

    Raises:
        AssertionError: the parts of an observation have different marks.
    """
    values = np.asarray(entry).astype(np.int64)
    if isinstance(space, spaces.Discrete):
        codes = values - int(space.start)
    elif isinstance(space, spaces.MultiBinary):
        codes = values @ (1 << np.arange(_N_BITS))
    elif space.dtype == np.uint8:
        pixels = values.reshape(*values.shape[:-3], _N_BYTES, -1)
        assert (pixels == pixels[..., :1]).all(), "pixels of one channel differ: images were mixed"
        codes = pixels[..., 0] @ (1 << 8 * np.arange(_N_BYTES))
    else:
        return values
    return np.stack(np.unravel_index(codes % 2**_N_BITS, _SIZES), -1)


# Lengths and endings of episodes

Ending = Literal["terminated", "truncated", "both"]

ENDLESS = 2**20 - 1
"""An episode length that no test reaches."""


class EpisodePlan(NamedTuple):
    """Length and ending of an episode."""

    length: int
    ending: Ending

    @property
    def flags(self) -> tuple[bool, bool]:
        """Return terminated and truncated at its last step."""
        return self.ending in ("terminated", "both"), self.ending in ("truncated", "both")


@dataclass(frozen=True)
class Script:
    """Lengths and endings in turn; env k begins with the k-th, so that envs end at different times.

    Attributes:
        lengths: steps of episodes, each at least 1.
        endings: `"terminated"`, `"truncated"` or `"both"`.
    """

    lengths: tuple[int, ...] = (3, 5, 1, 4)
    endings: tuple[Ending, ...] = ("terminated", "truncated", "both")

    def plan(self, env: int, episode: int, rng: np.random.Generator | None = None) -> EpisodePlan:  # noqa: ARG002  not drawn
        """Return the plan of an episode, which does not depend on the seed."""
        turn = env + episode
        return EpisodePlan(self.lengths[turn % len(self.lengths)], self.endings[turn % len(self.endings)])


@dataclass(frozen=True)
class RandomScript:
    """Lengths and endings drawn uniformly, which depend on the seed of the reset.

    Attributes:
        shortest: least number of steps of an episode, at least 1.
        longest: largest number of steps.
        endings: endings to choose from.
    """

    shortest: int = 1
    longest: int = 9
    endings: tuple[Ending, ...] = ("terminated", "truncated")

    def plan(self, env: int, episode: int, rng: np.random.Generator) -> EpisodePlan:  # noqa: ARG002  only drawn
        """Draw the plan of an episode."""
        length = int(rng.integers(self.shortest, self.longest + 1))
        return EpisodePlan(length, self.endings[int(rng.integers(len(self.endings)))])


# The envs


@dataclass(frozen=True)
class Counting:
    """Properties of counting envs.

    Attributes:
        observation: a name of `OBSERVATIONS`, or a space composed of their leaves.
        action_space: any served space; the env refuses actions outside it.
        script: lengths and endings of episodes.
        in_place: the env writes into the same arrays at every step; for spaces of arrays.
    """

    observation: str | spaces.Space[Any] = "vector"
    action_space: spaces.Space[Any] = field(default_factory=lambda: spaces.Discrete(3))
    script: Script | RandomScript = field(default_factory=Script)
    in_place: bool = False

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """Return the observation space."""
        return OBSERVATIONS[self.observation] if isinstance(self.observation, str) else self.observation


class CountingEnv(gym.Env[Any, Any]):
    """An env whose data identify themselves, and which raises when it is misused.

    Its observations are marks, its rewards `reward_of(mark, action)`. Stepping it before a reset or after an end is a
    `RuntimeError`, an action outside its space a `TypeError`.

    Args:
        number: number of the env.
        counting: its properties.
        faults: its faults, or an injector that counts them.
        render_mode: `"rgb_array"` or `None`.

    Attributes:
        mark: identity of its last observation.
        plan: plan of the present episode; `None` between episodes.
        seeds: seeds of its resets.
        closed: number of calls of `close`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  gymnasium's own declaration

    def __init__(
        self,
        number: int = 0,
        counting: Counting | None = None,
        faults: Iterable[Fault] | FaultInjector = (),
        render_mode: str | None = None,
    ) -> None:
        self.counting, self.render_mode = counting or Counting(), render_mode
        self.observation_space, self.action_space = self.counting.observation_space, self.counting.action_space
        self.mark = Mark(number, -1, 0)
        self.plan: EpisodePlan | None = None
        self.seeds: list[int | None] = []
        self.closed = 0
        self._injector = faults if isinstance(faults, FaultInjector) else FaultInjector(faults)
        self._arrays = write(self.observation_space, Mark(*_SIZES - 1))
        if not self.observation_space.contains(self._arrays):
            raise ValueError(f"{self.observation_space} cannot hold a mark; compose spaces of OBSERVATIONS")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        mark = Mark(self.mark.env, self.mark.episode + 1, 0)
        self._injector.before_reset(mark)
        super().reset(seed=seed, options=options)
        self.seeds.append(seed)
        self.plan = self.counting.script.plan(mark.env, mark.episode, self.np_random)
        return self._observe(mark), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make one step."""
        mark = self.mark._replace(step=self.mark.step + 1)
        self._injector.before_step(mark)
        if self.plan is None:
            raise RuntimeError(f"env {mark.env} was stepped before a reset, or after the end of {self.mark}")
        if not self.action_space.contains(action):
            raise TypeError(f"env {mark.env} got the action {action!r}; {self.action_space} wants another")
        reward = reward_of(mark, [reduce(getitem, leaf.path, action) for leaf in action_leaves(self.action_space)])
        flags = self.plan.flags if mark.step == self.plan.length else (False, False)
        if any(flags):
            self.plan = None
        return *self._injector.after_step(mark, self._observe(mark), reward), *flags, {}

    def close(self) -> None:
        """Count the call."""
        self.closed += 1
        self._injector.after_close(self.mark.env)

    def render(self) -> Any:
        """Return a small frame whose grey value is the step."""
        return np.full((8, 8, 3), self.mark.step % 256, dtype=np.uint8)

    def _observe(self, mark: Mark) -> Any:
        self.mark, observation = mark, write(self.observation_space, mark)
        if not self.counting.in_place:
            return observation
        for leaf in observation_leaves(self.observation_space):
            reduce(getitem, leaf.path, self._arrays)[...] = reduce(getitem, leaf.path, observation)
        return self._arrays


class CountingEnvs:
    """A factory of counting envs, which numbers them 0, 1, 2, … in the order of its calls.

    Args:
        counting: properties of the envs.
        faults: faults by env number.
        first: number of the first env.

    Attributes:
        made: the envs built so far, in order.
    """

    def __init__(self, counting: Counting | None = None, faults: Faults | None = None, first: int = 0) -> None:
        self.counting, self.faults = counting or Counting(), dict(faults or {})
        self.made: list[CountingEnv] = []
        self._next, self._home = first, os.getpid()

    def __call__(self) -> CountingEnv | None:
        """Build the next env."""
        number, self._next = self._next, self._next + 1
        injector = FaultInjector(self.faults.get(number, ()), self._home)
        if not injector.before_build(number):
            return None
        self.made.append(CountingEnv(number, self.counting, injector))
        return self.made[-1]


def reward_of(mark: Mark | Sequence[int], action: Sequence[Any]) -> float:
    """Return the reward of the step to `mark` with this action; exact in float32.

    Args:
        mark: mark of the next observation.
        action: one value per action leaf, in its space's dtype.
    """
    env, episode, step = (int(part) for part in mark)
    checksum = zlib.crc32(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in action))
    return (31 * env + 7 * episode + step + checksum) % 1024 / 8


LifeFaults: TypeAlias = Sequence[Fault] | Faults
"""Faults of one life: of its first env, or by env."""


@dataclass(frozen=True)
class Lives:
    """Faults in the lives of workers, in any processes of this machine.

    The number of a life follows from the number of envs that the worker's source has built so far. This works across
    processes, for every way in which a life ends, except for a life that is killed from outside while it builds its
    envs.

    Attributes:
        directory: an empty directory.
        script: faults by worker and life; lives beyond the script have none.
        num_envs: number of envs that each life builds.
        counting: properties of its counting envs; worker `w` has the numbers from `w * num_envs`, in every life.
        make_env: builds an env of another kind, which is wrapped in a `FaultyEnv`.
    """

    directory: Path
    script: Mapping[int, Sequence[LifeFaults]]
    num_envs: int = 1
    counting: Counting | None = None
    make_env: Callable[[], gym.Env[Any, Any]] | None = None

    def sources(self, n_workers: int) -> list[Callable[[], gym.Env[Any, Any] | None]]:
        """Return one env source per worker.

        Raises:
            ValueError: the script has other workers, too.
        """
        if not self.script.keys() <= set(range(n_workers)):
            raise ValueError(f"the script is of workers {sorted(self.script)}; there are {n_workers}")
        return [partial(self._build, worker, os.getpid()) for worker in range(n_workers)]

    def begun(self, worker: int) -> int:
        """Return the number of lives of a worker that have begun to build their envs."""
        return -(-self._count_built(worker) // self.num_envs)

    def _build(self, worker: int, home: int) -> gym.Env[Any, Any] | None:
        """Build the next env of a worker's life, or the first of its next life."""
        life, env = divmod(self._count_built(worker), self.num_envs)
        script, number = self.script.get(worker, ()), worker * self.num_envs + env
        faults = script[life] if life < len(script) else ()
        injector = FaultInjector((faults if isinstance(faults, Mapping) else {0: faults}).get(env, ()), home)
        self._record(worker)
        try:
            if not injector.before_build(number):
                return None
        except EnvBroke:
            for _ in range(env + 1, self.num_envs):
                self._record(worker)  # envs that this life will not build
            raise
        if self.make_env is not None:
            return FaultyEnv(self.make_env(), injector, number)
        return CountingEnv(number, self.counting, injector)

    def _count_built(self, worker: int) -> int:
        return len(list(self.directory.glob(f"worker{worker}-*")))

    def _record(self, worker: int) -> None:
        (self.directory / f"worker{worker}-{self._count_built(worker)}").touch(exist_ok=False)
