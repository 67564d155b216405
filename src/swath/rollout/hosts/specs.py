"""What the envs of a host look like: those whose leaves are arrays, and those with one TensorDict for all.

Whoever does not act in them reads only what both specs have, and need not ask which it has got.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from gymnasium import spaces
from tensordict import TensorDictBase

from swath.keys import TRUNCATED, Key, as_tuple
from swath.rollout.spaces import Leaf

Seeding = Literal["episode", "layout", "none"]
"""How far seeds reach: each episode, the layout as a whole, or nothing."""


@dataclass(frozen=True)
class ArraySpec:
    """What envs look like whose observations and actions are arrays.

    Attributes:
        num_envs: B.
        batch_shape: `*B`, the leading dimensions that policies and batches show: `()` for one bare env.
        observation: leaves of one env's observation.
        action: leaves of one env's action.
        action_space: the action space of one env.
        resettable: whether single envs can be reset while the others go on.
        alone: whether single envs can be stepped while the others stand still.
        skips: whether steps after an end are no transitions (a vector env in mode `NEXT_STEP`).
        seeding: `"episode"` if a reset takes a seed per env, `"layout"` if one for all.
        device: where the envs are.
        limits: whether they themselves keep the limit of steps that is asked for.
        open: whether they and the policy write whatever they like, also entries that are not delivered.
        truncates: whether a step of theirs can be marked as truncated.
    """

    num_envs: int
    batch_shape: tuple[int, ...]
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    action_space: spaces.Space[Any]
    resettable: bool = True
    alone: bool = True
    skips: bool = False
    seeding: Seeding = "episode"
    device: ClassVar[torch.device] = torch.device("cpu")
    limits: ClassVar[bool] = False
    open: ClassVar[bool] = False
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
class TensorDictSpec:
    """What envs look like that read and write a TensorDict, which is their only leaf.

    Attributes, beside those that `ArraySpec` has too:
        observed: keys of the observation entries, nested ones too.
        acted: keys of the action entries.
        carried: keys of the entries that the env reads back, beside the action.
        rewarded: keys of the reward entries.
        done: the end flags that count: of groups below one with flags of its own there are none.
        flags: all end flags.
        draw: writes random actions into a TensorDict.
        imagine: a TensorDict of zeros as a step leaves it, without what the policy writes.
        env: the env itself, for policies that take their action spec from it.
        alone: as in `ArraySpec`.
        seeding: as in `ArraySpec`.
    """

    num_envs: int
    batch_shape: tuple[int, ...]
    observed: tuple[Key, ...]
    acted: tuple[Key, ...]
    carried: tuple[Key, ...]
    rewarded: tuple[Key, ...]
    done: tuple[Key, ...]
    flags: tuple[Key, ...]
    draw: Callable[[TensorDictBase], TensorDictBase]
    imagine: Callable[[], TensorDictBase]
    env: Callable[[], Any]
    alone: bool = False
    seeding: Seeding = "layout"
    resettable: ClassVar[bool] = True
    skips: ClassVar[bool] = False
    limits: ClassVar[bool] = True
    open: ClassVar[bool] = True

    @property
    def device(self) -> torch.device | None:
        """Where the env is, if it says so; one that knows of no devices is on the CPU."""
        found: torch.device | None = getattr(self.env(), "device", torch.device("cpu"))
        return found

    @property
    def truncates(self) -> bool:
        """Whether there is a flag for it."""
        return any(as_tuple(key)[-1] == TRUNCATED for key in self.done)


HostSpec: TypeAlias = ArraySpec | TensorDictSpec
"""What the envs of any host look like."""
