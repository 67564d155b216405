"""How a worker's envs are made: each with its context, checked, shown to callbacks; all closed if one cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from swath.rollout.hosts.base import ArrayHost, closed_on_failure
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.vector import VectorHost, is_vector_env
from swath.rollout_workers.callbacks import DefaultCallbacks
from swath.rollout_workers.env_context import EnvContext
from swath.rollout_workers.hosts.own_vector import OwnVectorHost
from swath.rollout_workers.multi_agent_env import as_multi_agent
from swath.rollout_workers.vector_env import VectorEnv

SERVED = (
    "a gymnasium Env, a MultiAgentEnv or PettingZoo env, a swath.rollout_workers.VectorEnv, a gymnasium VectorEnv, "
    "EnvPool or ALE vector env, or None; a TorchRL EnvBase goes to a swath.Collector"
)


@dataclass
class EnvMaker:
    """Makes sub-envs.

    Attributes:
        creator: `f(EnvContext) -> env`.
        validate: `f(env, EnvContext)`, which raises to refuse; None refuses nothing.
        context: from which each env's own is copied.
        callbacks: the user's.
        worker: the `RolloutWorker`.
        contexts: those of the envs that live, by their numbers.
    """

    creator: Callable[[EnvContext], Any]
    validate: Callable[[Any, EnvContext], Any] | None
    context: EnvContext
    callbacks: DefaultCallbacks
    worker: Any
    contexts: dict[int, EnvContext] = field(default_factory=dict)

    def make(self, number: int) -> Any:
        """The env of this number; None if the creator makes none.

        Raises:
            Exception: what the creator, the check or a callback raised, as its own type with a note.
        """
        context = self.context.copy_with_overrides(vector_index=number)
        made: list[Any] = []
        try:
            with closed_on_failure(made):
                env = as_multi_agent(self.creator(context))
                if env is not None:
                    made.append(env)
                    self._show(env, context)
        except Exception as error:
            error.add_note(f"raised while sub-env {number} of worker {context.worker_index} was made")
            raise
        self.contexts[number] = context
        return env

    def make_all(self, num_envs: int) -> list[Any]:
        """Sub-envs in order, or the one vector env; empty if there is to be none.

        Raises:
            TypeError: the creator made something else.
            ValueError: envs that differ in their spaces, or the same one twice.
        """
        envs: list[Any] = []
        with closed_on_failure(envs):
            while len(envs) < num_envs:
                env = self.make(len(envs))
                if env is None and not envs:
                    return []
                if any(env is other for other in envs):
                    raise ValueError("env_creator returned the same env twice; it must make a new one at each call")
                several = isinstance(env, VectorEnv) or is_vector_env(env)
                if not isinstance(env, gym.Env) and not (several and not envs):
                    after = f" for vector_index={len(envs)}, after {envs[0]}; make envs of one kind" if envs else ""
                    raise TypeError(f"env_creator made {env!r}{after or f'; it must make {SERVED}'}")
                envs.append(env)
                if several:
                    break
        return envs

    def context_of(self, number: int) -> EnvContext:
        """What this env was made with; a copy of its own for a sub-env of a vector env."""
        if number in self.contexts:  # an empty one is falsy
            return self.contexts[number]
        return self.context.copy_with_overrides(vector_index=number)

    def _show(self, env: Any, context: EnvContext) -> None:
        if self.validate is not None:
            self.validate(env, context)
        self.callbacks.on_sub_environment_created(
            worker=self.worker,
            env_runner=self.worker,
            sub_environment=env,
            env_context=context,
            env_index=context.vector_index,
        )


def host_of(envs: Sequence[Any], maker: EnvMaker) -> ArrayHost:
    """The host that steps these envs of one agent each.

    Raises:
        TypeError: spaces of another kind.
        ValueError: envs that differ in their spaces.
    """
    first = envs[0]
    if isinstance(first, VectorEnv):
        return OwnVectorHost(first, lambda: maker.make(0))
    if is_vector_env(first):
        host: ArrayHost = VectorHost(first, lambda: [maker.make(0)], exact=True)
        return host
    return EnvListHost(envs, exact=True)


def shown(host: ArrayHost) -> list[Any]:
    """The sub-envs of a host, or its vector env if it shows none."""
    env = host.env
    if isinstance(env, list):
        return list(env)
    if isinstance(env, VectorEnv):
        return env.get_sub_environments() or [env]
    inner = getattr(env, "envs", None)
    return list(inner) if is_vector_env(env) and isinstance(inner, list | tuple) else [env]
