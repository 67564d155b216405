"""What the loop asks of an env source: B envs stepped together.

    leaves of actions [B, …] ──▶ step ──▶ Transition: true next observations, rewards, who ended
                                 reset ──▶ observations with which the next episodes begin

A host never resets by itself in a way that can be seen: `Transition.observation` is what the step led to, also at the
end of an episode, and the observation of the next episode comes from `reset`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from gymnasium import spaces

from swath.keys import TRUNCATED, Key, as_tuple
from swath.owner import Owner
from swath.rollout.spaces import Array, Leaf, Leaves

# How far seeds reach: each episode, the layout as a whole, or nothing.
Seeding = Literal["episode", "layout", "none"]


@dataclass(frozen=True)
class CommonSpec:
    """What is known of the envs of any host.

    Attributes:
        num_envs: B.
        batch_shape: `*B`, the leading dimensions that policies and batches show: `()` for one bare env.
        resettable: whether single envs can be reset while the others go on.
        alone: whether single envs can be stepped while the others stand still.
        skips: whether steps after an end are no transitions (a vector env in mode `NEXT_STEP`).
        limits: most steps of an episode by env, for the loop to count; the host renews them with each reset. None if
            empty.
        seeding: `"episode"` if a reset takes a seed per env, `"layout"` if one for all.
    """

    num_envs: int
    batch_shape: tuple[int, ...]
    _: KW_ONLY
    resettable: bool = True
    alone: bool = True
    skips: bool = False
    limits: Sequence[int | None] = ()
    seeding: Seeding = "episode"


@dataclass(frozen=True)
class ArraySpec(CommonSpec):
    """Envs whose observations and actions are arrays, on the CPU.

    Attributes:
        observation: leaves of one env's observation.
        action: leaves of one env's action.
        observation_space: the observation space of one env.
        action_space: the action space of one env.
        truncates: whether a step of theirs can be marked as truncated.
    """

    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    device: ClassVar[torch.device] = torch.device("cpu")
    truncates: ClassVar[bool] = True

    @property
    def observed(self) -> tuple[Key, ...]:
        """Keys of the observation entries."""
        return tuple(leaf.key for leaf in self.observation)

    @property
    def acted(self) -> tuple[Key, ...]:
        """Keys of the action entries."""
        return tuple(leaf.key for leaf in self.action)


@dataclass(frozen=True)
class TensorDictSpec(CommonSpec):
    """Envs that read and write a TensorDict, which is their only leaf.

    They themselves keep the limit of steps that is asked for. They and the policy write whatever they like, also
    entries that are not delivered.

    Attributes:
        observed: keys of the observation entries, nested ones too.
        acted: keys of the action entries.
        rewarded: keys of the reward entries.
        done: the end flags that count: of groups below one with flags of its own there are none.
        flags: all end flags.
        host: steps them; `host.draw` writes random actions into a TensorDict, `host.imagine` makes one of zeros as a
            step leaves it, without what the policy writes.
    """

    observed: tuple[Key, ...]
    acted: tuple[Key, ...]
    rewarded: tuple[Key, ...]
    done: tuple[Key, ...]
    flags: tuple[Key, ...]
    host: Any = None

    @property
    def device(self) -> torch.device | None:
        """Where the env is, if it says so; one without a device is on the CPU."""
        return getattr(first_of(self.host.env), "device", torch.device("cpu"))

    @property
    def truncates(self) -> bool:
        """Whether there is a flag for it."""
        return any(as_tuple(key)[-1] == TRUNCATED for key in self.done)


# What the envs of any host look like.
HostSpec: TypeAlias = ArraySpec | TensorDictSpec

# Builds all envs of a host anew.
Make: TypeAlias = Callable[[], Sequence[Any]]

# What envs said beside: one mapping per env, or a vector env's mapping of batches. `info_of` reads one env's.
Infos = Sequence[Mapping[str, Any]] | Mapping[str, Any]


def first_of(env: Any) -> Any:
    """The first of a list of envs; any other env, as `Host.env` gives it, itself."""
    return env[0] if isinstance(env, list) else env


def fps_of(env: Any) -> float | None:
    """Frames per second of what the first of the envs renders, as its metadata say; `None` if they do not."""
    metadata = getattr(first_of(env), "metadata", None)
    rate = metadata.get("render_fps") if isinstance(metadata, Mapping) else None  # TorchRL's batches have a list
    return float(rate) if rate else None


class EnvRaised(Exception):  # noqa: N818
    """An env raised in a step or a reset. Internal: whoever drives the loop raises `cause`, with a note.

    Attributes:
        env: which env.
        cause: what it raised.
    """

    def __init__(self, env: int, cause: Exception) -> None:
        super().__init__(env, cause)
        self.env, self.cause = env, cause


@dataclass(slots=True, eq=False)
class Ends:
    """Episodes that ended with one step, in env order.

    Attributes:
        envs: int64 `[n]`.
        terminated: bool `[n]`.
        truncated: bool `[n]`.
    """

    envs: Array
    terminated: Array
    truncated: Array

    @classmethod
    def listed(cls, ended: Iterable[tuple[int, bool, bool]]) -> Ends:
        """Of a tuple each: env, terminated, truncated."""
        in_order = sorted(ended)
        if not in_order:
            return NO_ENDS
        rows = np.array(in_order, dtype=np.int64)
        return cls(rows[:, 0], rows[:, 1].astype(np.bool_), rows[:, 2].astype(np.bool_))

    @classmethod
    def flagged(cls, terminated: Array, truncated: Array) -> Ends:
        """Of flags `[B]`."""
        envs = (terminated | truncated).nonzero()[0]
        return cls(envs, terminated[envs], truncated[envs]) if len(envs) else NO_ENDS

    def __iter__(self) -> Iterator[tuple[int, bool, bool]]:
        """Env, terminated, truncated of each."""
        return zip(self.envs.tolist(), self.terminated.tolist(), self.truncated.tolist(), strict=True)

    def cutting(self, envs: Iterable[int]) -> Ends:
        """These, and the episodes of these envs truncated, or truncated too."""
        cut, terminated = {*envs}, {*self.envs[self.terminated].tolist()}
        return Ends.listed([*self.without([*cut]), *((env, env in terminated, True) for env in cut)])

    def without(self, envs: Sequence[int] | Array) -> Ends:
        """Those of other envs."""
        kept = ~np.isin(self.envs, envs)
        return Ends(self.envs[kept], self.terminated[kept], self.truncated[kept]) if kept.any() else NO_ENDS


NO_ENDS = Ends(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_), np.empty(0, dtype=np.bool_))


@dataclass(slots=True)
class Transition:
    """What one step of B envs led to.

    Attributes:
        observation: leaves `[B, …]`; fresh arrays that nobody writes again. At an end the true last observation.
        reward: float array `[B]`, as the env gave it.
        ended: episodes that ended with this step.
        void: envs whose row is no transition (a `NEXT_STEP` vector env reset itself and ignored the action).
        failed: envs that raised, with the exception; their rows hold nothing.
        info: what the envs said beside, untouched.
    """

    observation: Leaves
    reward: Array
    ended: Ends = NO_ENDS
    void: Sequence[int] = ()
    failed: Sequence[tuple[int, Exception]] = ()
    info: Infos = ()


class Host(ABC):
    """B envs stepped together; used by one thread at a time. The base of all hosts.

    Args:
        envs: what is stepped, and closed at the end.
        make: builds as many others; `None` for instances of the user's.

    Attributes:
        spec: what the envs look like.
    """

    spec: HostSpec

    def __init__(self, envs: Sequence[Any], make: Make | None) -> None:
        self.envs, self._make, self._closed, self._owner = list(envs), make, False, Owner()
        self._seeds: dict[int, int] = {}

    @property
    @abstractmethod
    def env(self) -> Any:
        """The live env object: a single env, a vector env, or a list of envs."""

    @abstractmethod
    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones; with one seed per env or from the envs' own state."""

    @abstractmethod
    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs: `onto` with their rows replaced, in fresh arrays. `seeds` go with `envs`.

        An env whose seed is `None` begins from its own random state. A host whose envs begin by themselves within the
        next step returns `onto` and reports the row as void.
        """

    @abstractmethod
    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Advance every env that is not retired, or `only` one, in the place of a step of it that failed.

        `action` begins with the action leaves `[B, …]`; more is ignored. Observations and infos of envs that are not
        advanced are those of their last step. `only` is for envs that can be stepped alone.
        """

    def retire(self, envs: Sequence[int]) -> None:  # noqa: B027  envs that step together go on
        """Step these envs no more, where that can be; their rows mean nothing until `reset_all`."""

    @abstractmethod
    def render(self, env: int) -> Array | None:
        """A frame `[H, W, 3]` uint8 of this env, or `None` if it does not render."""

    def seed_of(self, env: int) -> int | None:
        """The seed this env was last given, if it was given one."""
        return self._seeds.get(env)

    def rebuild(self) -> Leaves:
        """Close everything, build it anew and begin an episode in every env.

        Raises:
            RuntimeError: there is nothing to build from: the source was an instance.
            EnvRaised: building or resetting one failed.
        """
        if self._make is None:
            raise RuntimeError("the env was given as an instance and cannot be built anew; pass a callable")
        close_broken(self)
        try:
            self.envs, self._closed = list(self._make()), False
        except Exception as error:
            raise EnvRaised(0, error) from error
        return self.reset_all()

    def close(self) -> None:
        """Close every env, also if one of them raises; that error is raised at the end. Twice is fine.

        A fork closes none: what they hold, processes and sockets perhaps, is its parent's.
        """
        envs, self._closed = self.envs if self._owner.is_here and not self._closed else [], True
        with ExitStack() as closing:
            for env in reversed(envs):
                closing.callback(env.close)


class ArrayHost(Host):
    """A host whose leaves are arrays."""

    spec: ArraySpec

    @abstractmethod
    def info_of(self, env: int) -> Mapping[str, Any]:
        """What this env said with its latest observation: of its last step, or of its reset if that came later."""


def close_broken(env: Any) -> None:
    """Close an env that is used no more; an exception is logged."""
    try:
        env.close()
    except Exception:
        logging.getLogger("swath").warning("an env that is used no more raised when it was closed", exc_info=True)


@contextmanager
def closed_on_failure(envs: list[Any]) -> Iterator[None]:
    """Close these envs, and those that are added to the list meanwhile, if anything fails; that error is raised."""
    try:
        yield
    except BaseException:
        for env in envs:
            close_broken(env)
        raise
