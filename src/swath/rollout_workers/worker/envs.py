"""The envs of a worker: they are made one by one, each with its context, and stepped by one host for the sampler."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Self

import gymnasium as gym

from swath.errors import noted
from swath.options import Restarts
from swath.rollout.episodes.statistics import LIFE_BITS, WORKER_BITS
from swath.rollout.failures import VoidRows
from swath.rollout.hosts.base import ArrayHost, close_on_failure
from swath.rollout.hosts.gymnasium import EnvListHost, MultiAgentHost
from swath.rollout.hosts.vector import VectorHost, is_vector_env
from swath.rollout_workers.config.policy_spec import env_space
from swath.rollout_workers.env_runner import EnvContext
from swath.rollout_workers.metrics import COUNTERS, MetricsLog, PerfStats
from swath.rollout_workers.multi_agent_env import MultiAgentEnv, as_multi_agent
from swath.rollout_workers.vector_env import OwnVectorHost, VectorEnv
from swath.rollout_workers.worker.setup import Seeds

SERVED = (
    "a gymnasium Env, a MultiAgentEnv or PettingZoo env, a swath.rollout_workers.VectorEnv, a gymnasium VectorEnv, "
    "EnvPool or ALE vector env, or None; a TorchRL EnvBase goes to a swath.Collector"
)

LONGEST_DELAY = 5.0
"""Most seconds before a sub-env is rebuilt, unless the first delay is longer."""


class Envs:
    """The envs of a worker, as callbacks see them: checked, and all closed if the creator fails.

    Args:
        worker: the `RolloutWorker`.
        validate: `f(env, EnvContext)`, which raises to refuse; None refuses nothing.

    Attributes:
        worker: the `RolloutWorker`.
        is_empty: the creator made no env; then the other attributes are missing.
        contexts: by number of the sub-env; copies for all but the first sub-env of a vector env.
        host: steps the envs.
        num_envs: number of sub-envs.
        has_agents: the sub-envs have several agents.
        observation_space: of one sub-env, before preprocessing.
        action_space: of one sub-env, before preprocessing.
        failures: handles envs that raise.
        log: keeps the metrics of episodes.
        timer: times the steps.
        counts: what was sampled and discarded, by `COUNTERS`.
        episode_ids: the next ids of episodes, never used before.
        unroll_ids: the next ids of chunks, never used before.

    Raises:
        TypeError: the creator returns another object, or envs with spaces of another kind.
        ValueError: envs that differ in their spaces, or the same env twice.
        Exception: what the creator, the check or a callback raised, as its own type with a note.
    """

    def __init__(self, worker: Any, validate: Callable[[Any, EnvContext], Any] | None) -> None:
        self.worker, self._validate = worker, validate
        self.log, self.timer, self.counts = MetricsLog(), PerfStats(), dict.fromkeys(COUNTERS, 0)
        self.contexts: dict[int, EnvContext] = {}
        envs: list[Any] = []
        with close_on_failure(envs):
            self._make_all(envs)
            self.is_empty = not envs
            if not envs:
                return
            self.host = self._host_of(envs)
            self.has_agents = isinstance(envs[0], MultiAgentEnv)
            self.observation_space, self.action_space = env_space(envs[0], "observation"), env_space(envs[0], "action")
            self.num_envs, self.stop = self.host.spec.num_envs, self.host.close
            self._rebuilds = [0] * self.num_envs
            for number in range(len(envs), self.num_envs):
                self.contexts[number] = worker.env_context.copy_with_overrides(vector_index=number)
            rebuild = self._rebuild if isinstance(self.host, EnvListHost | MultiAgentHost) else None
            self.failures = VoidRows(self._restarts(), rebuild, self._next_seed)
            first_id = (worker.worker_index << WORKER_BITS) + (worker.life << LIFE_BITS)
            self.episode_ids, self.unroll_ids = count(first_id), count(first_id)
            self.failures.set_seeds(None if worker.seeds is None else worker.seeds.env_seeds(self.num_envs))

    @property
    def first(self) -> Any:
        """Return sub-env 0 as the creator made it, or the vector env."""
        env = self.host.env
        return env[0] if isinstance(env, list) else env

    @property
    def vector_env(self) -> Self:
        """Return these envs, under RLlib's name for those that a view is of."""
        return self

    def get_sub_environments(self) -> list[Any]:
        """Return the sub-envs, or the vector env if it shows none."""
        env = self.host.env
        if isinstance(env, list):
            return list(env)
        sub_envs = env.get_sub_environments() if isinstance(env, VectorEnv) else getattr(env, "envs", ())
        return list(sub_envs) if sub_envs and isinstance(sub_envs, list | tuple) else [env]

    envs = property(get_sub_environments)

    def _restarts(self) -> Restarts | None:
        """Return how often envs that raise are rebuilt; None if that is not allowed."""
        config = self.worker.config
        if not config.restart_failed_sub_environments:
            return None
        delay, max_restarts = config.delay_between_sub_environment_restarts_s, config.max_num_sub_environment_restarts
        return Restarts(max_restarts, backoff_s=delay, backoff_max_s=max(LONGEST_DELAY, delay))

    def _rebuild(self, env: int) -> None:
        assert isinstance(self.host, EnvListHost | MultiAgentHost)
        self.host.replace_env(env, lambda: self._make(env))

    def _next_seed(self, env: int) -> int | None:
        """Count a rebuild of an env and return its new seed."""
        self._rebuilds[env] += 1
        seeds: Seeds | None = self.worker.seeds
        return None if seeds is None else seeds.rebuilt_env_seed(env, self.num_envs, self._rebuilds[env])

    def _make(self, number: int) -> Any:
        """Make and check the sub-env of this number; return None if the creator makes none."""
        worker = self.worker
        context = worker.env_context.copy_with_overrides(vector_index=number)
        envs: list[Any] = []
        with noted(f"the making of sub-env {number} of worker {context.worker_index}"), close_on_failure(envs):
            env = as_multi_agent(worker.env_creator(context))
            if env is not None:
                envs.append(env)
                if self._validate is not None:
                    self._validate(env, context)
                worker.callbacks.on_sub_environment_created(
                    worker=worker, env_runner=worker, sub_environment=env, env_context=context, env_index=number
                )
        self.contexts[number] = context
        return env

    def _make_all(self, envs: list[Any]) -> None:
        """Append the sub-envs in order, or the one vector env; nothing if the creator makes none."""
        while len(envs) < self.worker.config.num_envs_per_env_runner:
            env = self._make(len(envs))
            if env is None and not envs:
                return
            if any(env is other for other in envs):
                raise ValueError("env_creator returned the same env twice; it must make a new one at each call")
            is_vector, number = isinstance(env, VectorEnv) or is_vector_env(env), len(envs)
            if hasattr(env, "close"):  # also one that is refused
                envs.append(env)
            if not isinstance(env, gym.Env) and not (is_vector and number == 0):
                after = f" for vector_index={number}, after {envs[0]}; make envs of one kind" if number else ""
                raise TypeError(f"env_creator made {env!r}{after or f'; it must make {SERVED}'}")
            if is_vector:
                return

    def _host_of(self, envs: list[Any]) -> ArrayHost:
        """Return a host for the envs."""
        first = envs[0]
        if isinstance(first, MultiAgentEnv):
            return MultiAgentHost(envs)
        if isinstance(first, VectorEnv):
            return OwnVectorHost(first, lambda: self._make(0))
        if is_vector_env(first):
            host: ArrayHost = VectorHost(first, lambda: [self._make(0)], exact=True)
            return host
        return EnvListHost(envs, exact=True)
