"""What is examined, and how long each look may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swath.doctor.fault import calling
from swath.doctor.watchdog import beat
from swath.options import count, seconds
from swath.rollout.hosts.sources import Source, make_env
from swath.rollout.hosts.torchrl import is_torchrl_env
from swath.rollout.hosts.vector_reset import is_envpool, is_vector_env


@dataclass(frozen=True)
class Effort:
    """How long a look at an env may take: it ends at the first of the two.

    Attributes:
        steps: most steps of one walk through the env.
        seconds: after which no further step is made.
    """

    steps: int = 1000
    seconds: float = 2.0

    def __post_init__(self) -> None:
        count("steps", self.steps)
        seconds("seconds", self.seconds)


@dataclass(frozen=True)
class Subject:
    """An env with what is planned for it.

    Attributes:
        env: a Gymnasium id, a callable that builds an env, or an env.
        policy: what acts, as `Collector` takes it; `None` for random actions.
        policy_factory: builds what acts, instead.
        envs: how many envs a worker is to step together.
        workers: how many workers there are to be.
        backend: where they are to live; `None` if that is open.
        effort: how long a look may take.
        seed: of actions and envs.
    """

    env: Any
    policy: Any = None
    policy_factory: Callable[..., Any] | None = None
    envs: int = 8
    workers: int = 1
    backend: str | None = None
    effort: Effort = field(default_factory=Effort)
    seed: int = 0

    def __post_init__(self) -> None:
        Source(self.env)
        count("envs", self.envs)
        count("workers", self.workers)

    @property
    def is_instance(self) -> bool:
        """Whether the env exists already, so that no other can be built."""
        return Source(self.env).is_instance

    @property
    def has_policy(self) -> bool:
        """Whether somebody else than chance is to act."""
        return self.policy is not None or self.policy_factory is not None

    def make(self) -> Any:
        """An env to look at: another one at each call, unless it was given as an instance.

        Raises:
            Exception: what building it raised.
        """
        beat()
        return self.env if self.is_instance else make_env(Source(self.env))

    def done_with(self, env: Any) -> None:
        """Close an env that `make` gave; the user's own stays open.

        Raises:
            Fault: closing it raised.
        """
        if not self.is_instance:
            beat()
            with calling(env, "close"):
                env.close()


def is_walkable(env: Any) -> bool:
    """Whether an env has Gymnasium's interface, alone or batched; TorchRL's and EnvPool's are looked at in use only."""
    return not is_torchrl_env(env) and not is_envpool(env)


def is_batched(env: Any) -> bool:
    """Whether one step advances several envs."""
    return is_vector_env(env)


def size_of(env: Any) -> int:
    """How many envs one step advances."""
    if is_torchrl_env(env):
        return int(env.batch_size.numel())
    return int(env.num_envs) if is_batched(env) else 1
