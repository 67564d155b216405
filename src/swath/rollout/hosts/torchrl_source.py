"""From what users hand in to one TorchRL env: several copies in a batch, with a limit of steps, on a device."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from swath.keys import STEP_COUNT, as_tuple
from swath.rollout.hosts.torchrl_memory import with_memory


@dataclass(frozen=True)
class Fitting:
    """What a collector asks of a TorchRL env beyond its source.

    Attributes:
        max_steps: most steps of an episode; counted, and cut, by the env itself.
        device: where it runs; `None` leaves it where it is.
        policy: the policy for such an env, if the env is to supply what that reads; `None` if not.
        apart: whether several copies are stepped one by one, each with seeds of its own, instead of as one batch.
    """

    max_steps: int | None = None
    device: torch.device | None = None
    policy: Callable[[Any], Any] | None = None
    apart: bool = False

    def applied(self, env: Any) -> Any:
        """The env, fitted.

        Raises:
            ValueError: it counts steps already.
        """
        if self.device is not None:
            env = env.to(self.device)
        if self.policy is not None:
            env = with_memory(env, self.policy(env))
        return env if self.max_steps is None else _limited(env, self.max_steps)


def has_makers(env: Any) -> bool:
    """Whether this is a batched env that has yet to build its envs, so that keywords still reach their makers."""
    envs = sys.modules.get("torchrl.envs")
    return envs is not None and isinstance(env, envs.SerialEnv | envs.ParallelEnv) and bool(env.is_closed)


def batch_of(makers: Sequence[Callable[[], Any]]) -> Any:
    """One env that steps those of these makers together."""
    return _envs().SerialEnv(len(makers), list(makers))


CREATOR = ("torchrl.envs.env_creator", "EnvCreator")
"""Where TorchRL's maker of envs with a common state is, and its name."""


def creator_apart(creator: Any) -> tuple[Any, ...]:
    """An `EnvCreator` for another process: a function that builds envs with the state that it has now."""
    return partial, (_created, creator.create_env_fn, creator.create_env_kwargs, creator.state_dict())


def _created(make: Callable[..., Any], fixed: Mapping[str, Any], state: Mapping[str, Any], **kwargs: Any) -> Any:
    env = make(**{**kwargs, **fixed})
    env.load_state_dict(state, strict=False)
    return env


class Handed:
    """A maker that hands out an env which exists, but a copy at first: a batched env closes the first it is given.

    Args:
        env: the env.
        copy: makes a copy of it.
    """

    def __init__(self, env: Any, copy: Callable[[], Any]) -> None:
        self._env, self._copy = env, copy
        self._asked = False

    def __call__(self) -> Any:
        """The copy, then the env."""
        if self._asked:
            return self._env
        self._asked = True
        return self._copy()


def _limited(env: Any, max_steps: int) -> Any:
    keys = env.output_spec.keys(include_nested=True, leaves_only=True)
    if any(STEP_COUNT in as_tuple(key) for key in keys):
        raise ValueError(
            f"max_frames_per_traj={max_steps}: a 'step_count' key is already present in the environment; "
            "leave it at 0, or take the StepCounter out of the env"
        )
    envs = _envs()
    return envs.TransformedEnv(env, envs.StepCounter(max_steps=max_steps), auto_unwrap=True)


def _envs() -> Any:
    return importlib.import_module("torchrl.envs")
