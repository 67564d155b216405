"""The host: B envs that the loop steps together.

    leaves of actions [B, …] ──▶ step ──▶ Transition: true next observations, rewards, ends of episodes
                                 reset ──▶ first observations of the next episodes

A host never shows a reset of its envs in a step: `Transition.observation` is what the step led to, also at the end of
an episode, and `reset` returns the first observation of the next one.
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


CPU = torch.device("cpu")


@dataclass(frozen=True)
class CommonSpec:
    """Properties that the envs of every host have.

    Attributes:
        num_envs: B.
        batch_shape: `*B`, the leading dimensions of observations, actions and batches: `()` for one bare env.
        resettable: whether a reset may name some of the envs.
        steps_singly: whether a step may name one of the envs.
        next_step_autoreset: whether the step after an end only resets the env (a vector env in mode `NEXT_STEP`).
        limits: the step limit of each env, counted by the loop; the host updates them at every reset. Empty: no limits.
        autoresets: whether the envs reset themselves and report ends as `DeviceEnds`, which a loop that begins every
            next episode need not read.
        seeding: `"episode"` if a reset takes a seed per env, `"layout"` if it takes one for all.
    """

    num_envs: int
    batch_shape: tuple[int, ...]
    _: KW_ONLY
    resettable: bool = True
    steps_singly: bool = True
    next_step_autoreset: bool = False
    autoresets: bool = False
    limits: Sequence[int | None] = ()
    seeding: Seeding = "episode"

    @property
    def tensor_device(self) -> torch.device | None:
        """Return the device of leaves that are tensors; `None` for arrays, and for a TensorDict."""
        return None


@dataclass(frozen=True)
class ArraySpec(CommonSpec):
    """Envs whose observations and actions are arrays, or tensors of torch.

    Attributes:
        observation: leaves of one env's observation.
        action: leaves of one env's action.
        observation_space: the observation space of one env.
        action_space: the action space of one env.
        device: where observations and actions are.
        of_tensors: whether they are tensors of torch, not arrays.
        library: the library of the envs; leaves of TorchRL's and PettingZoo's envs are entries of TensorDicts.
        can_truncate: whether a step can be marked as truncated.
    """

    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    _: KW_ONLY
    device: torch.device = CPU
    of_tensors: bool = False
    library: Literal["gymnasium", "torchrl", "pettingzoo"] = "gymnasium"
    can_truncate: ClassVar[bool] = True

    @property
    def tensor_device(self) -> torch.device | None:
        """Return the device of leaves that are tensors; `None` for arrays."""
        return self.device if self.of_tensors else None

    @property
    def observation_keys(self) -> tuple[Key, ...]:
        """Return the keys of the observation entries."""
        return tuple(leaf.key for leaf in self.observation)

    @property
    def action_keys(self) -> tuple[Key, ...]:
        """Return the keys of the action entries."""
        return tuple(leaf.key for leaf in self.action)


@dataclass(frozen=True)
class TensorDictSpec(CommonSpec):
    """Envs that read and write a TensorDict, which is their only leaf.

    These envs count steps towards their limit themselves. Env and policy may write any entry, also entries that are
    not delivered.

    Attributes:
        observation_keys: keys of the observation entries, nested ones too.
        action_keys: keys of the action entries.
        reward_keys: keys of the reward entries.
        done_keys: keys of the flags that end an episode; flags of a group inside a group with flags do not.
        all_done_keys: keys of all flags.
        host: the host of the envs; `host.draw` writes random actions into a TensorDict, `host.zero_step` returns a
            TensorDict of zeros with the entries of a step, except those that the policy writes.
        library: the library of the envs.
    """

    observation_keys: tuple[Key, ...]
    action_keys: tuple[Key, ...]
    reward_keys: tuple[Key, ...]
    done_keys: tuple[Key, ...]
    all_done_keys: tuple[Key, ...]
    host: Any = None
    library: Literal["torchrl", "pettingzoo"] = "torchrl"

    @property
    def hands_on(self) -> bool:
        """Tell whether the next root has the entries that the policy has written."""
        return self.library == "torchrl" and not self.steps_singly

    @property
    def device(self) -> torch.device | None:
        """Return the device of the env; an env without this attribute is on the CPU."""
        return getattr(first_env(self.host.env), "device", torch.device("cpu"))

    @property
    def can_truncate(self) -> bool:
        """Tell whether the env has a truncated flag."""
        return any(as_tuple(key)[-1] == TRUNCATED for key in self.done_keys)


HostSpec: TypeAlias = ArraySpec | TensorDictSpec

# Builds all envs of a host.
MakeEnvs: TypeAlias = Callable[[], Sequence[Any]]

# Info dicts: one mapping per env, or a vector env's mapping of batches. `info_of` returns the info of one env.
Infos = Sequence[Mapping[str, Any]] | Mapping[str, Any]


def first_env(env: Any) -> Any:
    """Return the first env of a list, or the env itself; `env` is a `Host.env`."""
    return env[0] if isinstance(env, list) else env


def frame_rate(env: Any) -> float | None:
    """Return the frames per second in the metadata of the first env, or `None`."""
    metadata = getattr(first_env(env), "metadata", None)
    rate = metadata.get("render_fps") if isinstance(metadata, Mapping) else None  # TorchRL's batches have a list
    return float(rate) if rate else None


class EnvRaised(Exception):  # noqa: N818
    """An env raised in a step or a reset. Internal: users of the loop raise `cause`, with a note.

    Attributes:
        env: index of the env.
        cause: the exception of the env.
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
        lacks_final: bool `[n]`: the env has not sent its last observation, and the step led to the first of its next
            episode; `None` if all have.
    """

    envs: Array
    terminated: Array
    truncated: Array
    lacks_final: Array | None = None

    @classmethod
    def from_tuples(cls, ends: Iterable[tuple[int, bool, bool]]) -> Ends:
        """Return the ends for tuples of env, terminated, truncated."""
        in_order = sorted(ends)
        if not in_order:
            return NO_ENDS
        rows = np.array(in_order, dtype=np.int64)
        return cls(rows[:, 0], rows[:, 1].astype(np.bool_), rows[:, 2].astype(np.bool_))

    @classmethod
    def from_flags(cls, terminated: Array, truncated: Array) -> Ends:
        """Return the ends for flags `[B]`."""
        envs = (terminated | truncated).nonzero()[0]
        return cls(envs, terminated[envs], truncated[envs]) if len(envs) else NO_ENDS

    def __iter__(self) -> Iterator[tuple[int, bool, bool]]:
        """Iterate over tuples of env, terminated, truncated."""
        return zip(self.envs.tolist(), self.terminated.tolist(), self.truncated.tolist(), strict=True)

    def with_truncated(self, envs: Iterable[int]) -> Ends:
        """Return these ends with the episodes of `envs` marked as truncated; a terminated flag stays."""
        truncated, terminated = {*envs}, {*self.envs[self.terminated].tolist()}
        ends = [*self.without([*truncated]), *((env, env in terminated, True) for env in truncated)]
        merged = Ends.from_tuples(ends)
        if self.lacks_final is not None:
            merged.lacks_final = np.isin(merged.envs, self.envs[self.lacks_final])
        return merged

    def without(self, envs: Sequence[int] | Array) -> Ends:
        """Return these ends except the ends of `envs`."""
        is_kept = ~np.isin(self.envs, envs)
        if not is_kept.any():
            return NO_ENDS
        lacks_final = None if self.lacks_final is None else self.lacks_final[is_kept]
        return Ends(self.envs[is_kept], self.terminated[is_kept], self.truncated[is_kept], lacks_final)


NO_ENDS = Ends(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_), np.empty(0, dtype=np.bool_))


@dataclass
class DeviceEnds:
    """The ends of one step of B envs as tensors, which are on a device and were not read.

    Attributes:
        terminated: bool `[B]`.
        truncated: bool `[B]`.
        void: bool `[B]`: the row is no transition; `None` if all are.
        final: leaves `[B, …]`: the true last observation of envs that ended, if the observation is the first of their
            next episode; `None` if the env has not sent them.
        sent: bool `[B]`: the env has sent its last observation; `None` if all that ended have, or `final` is `None`.
        hides_final: whether the observation of an env that ended is the first of its next episode.
    """

    terminated: torch.Tensor
    truncated: torch.Tensor
    void: torch.Tensor | None = None
    final: Leaves | None = None
    sent: torch.Tensor | None = None
    hides_final: bool = False

    @property
    def ended(self) -> torch.Tensor:
        """Return whether each env ended, `[B]`."""
        return self.terminated | self.truncated

    @property
    def has_final(self) -> torch.Tensor:
        """Return which envs, if they ended, have sent their last observation, `[B]`."""
        return torch.full_like(self.terminated, self.final is not None) if self.sent is None else self.sent

    def read(self) -> tuple[Ends, list[int]]:
        """Return the ends, and the envs whose row is void; waits for the device."""
        void = [] if self.void is None else self.void.nonzero().flatten().tolist()
        if not bool(self.ended.any()):
            return NO_ENDS, void
        terminated, truncated = torch.stack([self.terminated, self.truncated]).numpy(force=True)
        ends = Ends.from_flags(terminated, truncated)
        if self.hides_final and not bool(self.has_final[self.ended].all()):
            ends.lacks_final = ~self.has_final.numpy(force=True)[ends.envs]
        return ends, void

    def true_observation(self, observation: Leaves) -> Leaves:
        """Return the observation with the true last ones of envs that ended, as far as the env has sent them."""
        if self.final is None:
            return observation
        ended = self.ended & self.has_final
        return [
            torch.where(ended.view(-1, *[1] * (leaf.dim() - 1)), final, leaf)
            for final, leaf in zip(self.final, observation, strict=True)
        ]


@dataclass(slots=True)
class Transition:
    """The result of one step of B envs.

    Attributes:
        observation: leaves `[B, …]`; fresh arrays that are never written again. At an end the true last observation.
        reward: float array or tensor `[B]`, in the env's dtype; `None` if it is only read once per fragment, from the
            TensorDicts of its steps.
        ends: episodes that ended with this step.
        void: envs whose row is no transition (a `NEXT_STEP` vector env reset itself and ignored the action).
        failed: envs that raised, with the exception; their rows are undefined.
        info: the info dicts of the envs, unchanged.
        device_ends: the ends of envs of tensors, in place of `ends` and `void`.
    """

    observation: Leaves
    reward: Any
    ends: Ends = NO_ENDS
    void: Sequence[int] = ()
    failed: Sequence[tuple[int, Exception]] = ()
    info: Infos = ()
    device_ends: DeviceEnds | None = None


class Host(ABC):
    """B envs stepped together; used by one thread at a time. The base of all hosts.

    Args:
        envs: the envs, which `close` closes.
        make: builds them again; `None` for instances that the user built.

    Attributes:
        spec: properties of the envs.
    """

    spec: HostSpec

    def __init__(self, envs: Sequence[Any], make: MakeEnvs | None) -> None:
        self.envs, self._make, self._closed, self._owner = list(envs), make, False, Owner()
        self._seeds: dict[int, int] = {}

    @property
    @abstractmethod
    def env(self) -> Any:
        """Return the live env object: a single env, a vector env, or a list of envs."""

    @abstractmethod
    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones, and return the observations.

        Args:
            seeds: one per env; `None`, or `None` for an env: continue from the random state of the env.
        """

    @abstractmethod
    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs and return a copy of `base` with their first observations as rows.

        A host whose envs reset within the next step returns `base` itself, and reports the row of that step as void.

        Args:
            envs: indices of envs.
            base: observations `[B, …]` of all envs.
            seeds: one per entry of `envs`; `None`, or `None` for an env: continue from the random state of the env.
        """

    def send(self, action: Leaves) -> None:  # noqa: B027  most hosts step in `step`
        """Begin the step that the next call of `step` completes with the same action, if the envs step elsewhere."""

    @abstractmethod
    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Step every env that is not retired, or the env `only`, whose last step failed.

        Envs that are not stepped keep the observation and info of their last step.

        Args:
            action: the action leaves `[B, …]`; leaves after these are ignored.
            only: index of an env, if `spec.steps_singly`.
        """

    def retire(self, envs: Sequence[int]) -> None:  # noqa: B027  a vector env steps all of its envs
        """Stop stepping these envs if possible; their rows are undefined until `reset_all`."""

    @abstractmethod
    def render(self, env: int) -> Array | None:
        """Return a frame `[H, W, 3]` uint8 of this env, or `None` if it does not render."""

    def seed_of(self, env: int) -> int | None:
        """Return the last seed of this env, or `None`."""
        return self._seeds.get(env)

    def rebuild(self) -> Leaves:
        """Close all envs, build them again and begin an episode in every env.

        Raises:
            RuntimeError: the source was an env instance, which cannot be built again.
            EnvRaised: building or resetting an env failed.
        """
        if self._make is None:
            raise RuntimeError("the env was given as an instance and cannot be built again; pass a callable")
        close_quietly(self)
        try:
            self.envs, self._closed = list(self._make()), False
        except Exception as error:
            raise EnvRaised(0, error) from error
        return self.reset_all()

    def release(self) -> None:  # noqa: B027  most hosts step the user's own envs
        """End processes that step envs, and leave the user's envs open."""

    def close(self) -> None:
        """Close every env, and then raise the error of an env that failed to close. Calling it twice is fine.

        A forked process closes no env: processes and sockets of the envs belong to its parent.
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
        """Return the info dict that came with the latest observation of this env, of a step or a reset."""


def close_quietly(env: Any) -> None:
    """Close an env that is no longer used, and log an exception."""
    try:
        env.close()
    except Exception:
        logging.getLogger("swath").warning("an env that is no longer used raised when it was closed", exc_info=True)


@contextmanager
def close_on_failure(envs: list[Any]) -> Iterator[None]:
    """Close the envs in the list if the body raises, also envs that the body has added."""
    try:
        yield
    except BaseException:
        for env in envs:
            close_quietly(env)
        raise
