"""Envs that count: every observation says which env, episode and step it is of, every reward which action got there.

    Mark(env, episode, step) ──▶ write(space, mark) ──▶ env ──▶ batch ──▶ read(space, entry) ──▶ [..., 3]

Every leaf of a space carries the whole mark, so that a mix-up of envs, rows or leaves shows itself.

Lives of workers are data, too: `{0: [[Fault("kill", step=3)], []]}` is a worker that dies at step 3 and then is fine.

    Lives(directory, script) ─▶ sources(W) ─▶ one env source per worker ─▶ built in life 0, 1, … with that life's faults
                └── one empty file for every env that was built, by whatever process
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
from swath.testing.faults import EnvBroke, Fault, Faults, FaultyEnv, Mark, Mishaps

# What is observed

_SIZES = np.array([2**8, 2**16, 2**20])
"""How many envs, episodes and steps there may be; together they are one number of 44 bits, or 6 bytes."""

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
"""Spaces that hold marks, by name; what is composed of their leaves by Dict and Tuple holds marks too."""


def write(space: spaces.Space[Any], mark: Mark) -> Any:
    """The observation of this space that says `mark`.

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
    """Marks `[..., 3]` out of the batch entry `[..., *shape]` of a leaf.

    Raises:
        AssertionError: the parts of one observation contradict each other.
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


# How long episodes last and how they end

Ending = Literal["terminated", "truncated", "both"]

ENDLESS = 2**20 - 1
"""More steps than any test makes."""


class EpisodePlan(NamedTuple):
    """One episode: its steps, and which flags end it."""

    length: int
    ending: Ending

    @property
    def flags(self) -> tuple[bool, bool]:
        """Terminated, truncated at its last step."""
        return self.ending in ("terminated", "both"), self.ending in ("truncated", "both")


@dataclass(frozen=True)
class Script:
    """Lengths and endings in turn; env k begins with the k-th, so that envs end at different times.

    Attributes:
        lengths: steps of an episode, each at least 1.
        endings: `"terminated"`, `"truncated"` or `"both"`.
    """

    lengths: tuple[int, ...] = (3, 5, 1, 4)
    endings: tuple[Ending, ...] = ("terminated", "truncated", "both")

    def plan(self, env: int, episode: int, rng: np.random.Generator | None = None) -> EpisodePlan:  # noqa: ARG002  not drawn
        """The same whatever the seed."""
        turn = env + episode
        return EpisodePlan(self.lengths[turn % len(self.lengths)], self.endings[turn % len(self.endings)])


@dataclass(frozen=True)
class RandomScript:
    """Lengths and endings drawn evenly, so that they follow from the seed of the reset.

    Attributes:
        shortest: fewest steps of an episode, at least 1.
        longest: most steps.
        endings: to choose from.
    """

    shortest: int = 1
    longest: int = 9
    endings: tuple[Ending, ...] = ("terminated", "truncated")

    def plan(self, env: int, episode: int, rng: np.random.Generator) -> EpisodePlan:  # noqa: ARG002  only drawn
        """Drawn anew at each reset."""
        length = int(rng.integers(self.shortest, self.longest + 1))
        return EpisodePlan(length, self.endings[int(rng.integers(len(self.endings)))])


# The envs


@dataclass(frozen=True)
class Counting:
    """What counting envs are like.

    Attributes:
        observation: a name of `OBSERVATIONS`, or a space composed of their leaves.
        action_space: any served space; actions outside it are refused.
        script: how long episodes last and how they end.
        in_place: the env returns the same arrays from every step, written anew; for spaces of arrays.
    """

    observation: str | spaces.Space[Any] = "vector"
    action_space: spaces.Space[Any] = field(default_factory=lambda: spaces.Discrete(3))
    script: Script | RandomScript = field(default_factory=Script)
    in_place: bool = False

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The space itself."""
        return OBSERVATIONS[self.observation] if isinstance(self.observation, str) else self.observation


class CountingEnv(gym.Env[Any, Any]):
    """An env whose data name themselves, and which refuses to be misused.

    Its observations are marks, its rewards `reward_of(mark, action)`. Stepping it before a reset or after an end is a
    `RuntimeError`, an action outside its space a `TypeError`.

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
        self.counting, self.render_mode = counting or Counting(), render_mode
        self.observation_space, self.action_space = self.counting.observation_space, self.counting.action_space
        self.mark = Mark(number, -1, 0)
        self.plan: EpisodePlan | None = None
        self.seeds: list[int | None] = []
        self.closed = 0
        self._mishaps = faults if isinstance(faults, Mishaps) else Mishaps(faults)
        self._kept = write(self.observation_space, Mark(*_SIZES - 1))
        if not self.observation_space.contains(self._kept):
            raise ValueError(f"{self.observation_space} cannot hold a mark; compose spaces of OBSERVATIONS")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        mark = Mark(self.mark.env, self.mark.episode + 1, 0)
        self._mishaps.resetting(mark)
        super().reset(seed=seed, options=options)
        self.seeds.append(seed)
        self.plan = self.counting.script.plan(mark.env, mark.episode, self.np_random)
        return self._look(mark), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make one step."""
        mark = self.mark._replace(step=self.mark.step + 1)
        self._mishaps.stepping(mark)
        if self.plan is None:
            raise RuntimeError(f"env {mark.env} was stepped before a reset, or after the end of {self.mark}")
        if not self.action_space.contains(action):
            raise TypeError(f"env {mark.env} got the action {action!r}; {self.action_space} wants another")
        reward = reward_of(mark, [reduce(getitem, leaf.path, action) for leaf in action_leaves(self.action_space)])
        flags = self.plan.flags if mark.step == self.plan.length else (False, False)
        if any(flags):
            self.plan = None
        return *self._mishaps.stepped(mark, self._look(mark), reward), *flags, {}

    def close(self) -> None:
        """Count that it was closed."""
        self.closed += 1
        self._mishaps.closed(self.mark.env)

    def render(self) -> Any:
        """A small frame whose grey is the step."""
        return np.full((8, 8, 3), self.mark.step % 256, dtype=np.uint8)

    def _look(self, mark: Mark) -> Any:
        self.mark, observation = mark, write(self.observation_space, mark)
        if not self.counting.in_place:
            return observation
        for leaf in observation_leaves(self.observation_space):
            reduce(getitem, leaf.path, self._kept)[...] = reduce(getitem, leaf.path, observation)
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
        self.counting, self.faults = counting or Counting(), dict(faults or {})
        self.made: list[CountingEnv] = []
        self._next, self._home = first, os.getpid()

    def __call__(self) -> CountingEnv | None:
        """The next env."""
        number, self._next = self._next, self._next + 1
        mishaps = Mishaps(self.faults.get(number, ()), self._home)
        if not mishaps.building(number):
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


LifeFaults: TypeAlias = Sequence[Fault] | Faults
"""What goes wrong in one life: in its first env, or by env."""


@dataclass(frozen=True)
class Lives:
    """What goes wrong in the lives of workers, wherever they live on this machine.

    Which life it is follows from how many envs the worker's source has built so far. Nothing else is remembered, so
    that a script works across processes and says the same however a life ended; but for a life that was ended from
    outside while it built its envs.

    Attributes:
        directory: an empty one.
        script: by worker, by life; lives beyond the script are fine.
        num_envs: how many envs each life builds.
        counting: what its counting envs are like; worker `w` has the numbers from `w * num_envs`, in every life.
        make_env: builds an env of another kind, which is wrapped in a `FaultyEnv`.
    """

    directory: Path
    script: Mapping[int, Sequence[LifeFaults]]
    num_envs: int = 1
    counting: Counting | None = None
    make_env: Callable[[], gym.Env[Any, Any]] | None = None

    def sources(self, n_workers: int) -> list[Callable[[], gym.Env[Any, Any] | None]]:
        """One env source per worker.

        Raises:
            ValueError: the script is of other workers, too.
        """
        if not self.script.keys() <= set(range(n_workers)):
            raise ValueError(f"the script is of workers {sorted(self.script)}; there are {n_workers}")
        return [partial(self._made, worker, os.getpid()) for worker in range(n_workers)]

    def begun(self, worker: int) -> int:
        """How many lives of a worker have begun to build their envs."""
        return -(-self._built(worker) // self.num_envs)

    def _made(self, worker: int, home: int) -> gym.Env[Any, Any] | None:
        """The next env of a worker's life, or the first of its next life."""
        life, env = divmod(self._built(worker), self.num_envs)
        script, number = self.script.get(worker, ()), worker * self.num_envs + env
        faults = script[life] if life < len(script) else ()
        mishaps = Mishaps((faults if isinstance(faults, Mapping) else {0: faults}).get(env, ()), home)
        self._note(worker)
        try:
            if not mishaps.building(number):
                return None
        except EnvBroke:
            for _ in range(env + 1, self.num_envs):
                self._note(worker)  # the envs that this life will not build
            raise
        if self.make_env is not None:
            return FaultyEnv(self.make_env(), mishaps, number)
        return CountingEnv(number, self.counting, mishaps)

    def _built(self, worker: int) -> int:
        return len(list(self.directory.glob(f"worker{worker}-*")))

    def _note(self, worker: int) -> None:
        (self.directory / f"worker{worker}-{self._built(worker)}").touch(exist_ok=False)
