"""What a handle of a `RayEvalWorker` and its actor say to each other.

Recipe ──▶ Soloist ◀── Ask: play one rollout, with these weights ──▶ numbers, frames
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from swath.rollout.policies.exploration import ExplorationType


class Token(NamedTuple):
    """Names one rollout that was asked for.

    Attributes:
        asker: which handle.
        number: counts what that handle has asked for.
    """

    asker: str
    number: int


class Registration(NamedTuple):
    """Under which name an actor is found by other drivers.

    Attributes:
        name: of the actor.
        namespace: in which it is unique.
    """

    name: str
    namespace: str


@dataclass(frozen=True)
class Patience:
    """How long things may take, in seconds.

    Attributes:
        rollout_s: one rollout, in an actor that is up.
        start_s: `init_fn`, env and policy in a new actor.
        placement_s: before that, Ray, to place it.
    """

    rollout_s: float = 3600.0
    start_s: float = 300.0
    placement_s: float = 60.0


@dataclass(frozen=True)
class Recipe:
    """All it takes to begin such an actor, and to begin it again; travels to whoever holds a handle.

    Attributes:
        init: runs first, as bytes of cloudpickle; `None` for nothing.
        makers: of env and policy, as bytes of cloudpickle.
        resources: options of `ray.remote`.
        registration: under which it is found; `None`: it ends with its driver.
        done_keys: as `Reading.of` takes them.
        seed: root of all seeds.
        film_bytes: frames held at most.
        patience: how long things may take.
        retries: how often a rollout is repeated after its actor was lost.
    """

    init: bytes | None
    makers: bytes
    resources: Mapping[str, Any] = field(default_factory=dict)
    registration: Registration | None = None
    done_keys: Any = ("next", "done")
    seed: int | None = 0
    film_bytes: int = 2**30
    patience: Patience = field(default_factory=Patience)
    retries: int = 1


class Shared(Protocol):
    """Weights that were put where the actor can read them."""

    def open(self) -> Any:
        """The snapshot."""


@dataclass(frozen=True)
class Manner:
    """How a rollout is played.

    Attributes:
        max_steps: most steps of each sub-env; `None` for no such limit.
        exploration: how the policy picks actions.
        until_any_done: stop at the first step at which any sub-env is done.
        reward_keys: as `Reading.of` takes them.
    """

    max_steps: int | None = None
    exploration: ExplorationType = ExplorationType.DETERMINISTIC
    until_any_done: bool = True
    reward_keys: Any = ("next", "reward")


@dataclass(frozen=True)
class Ask:
    """One rollout.

    Attributes:
        token: its name.
        manner: how it is played.
        weights: a snapshot for the policy; `None` for those it has.
        version: of these, as far as the asker knows what others have sent.
    """

    token: Token
    manner: Manner
    weights: Shared | None = None
    version: int = 0
