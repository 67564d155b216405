"""The envs of a worker: how they are made, each with its context, and what samples from them with the policies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

import gymnasium as gym

from swath.errors import noted
from swath.options import Restarts
from swath.rollout.episodes.statistics import LIFE_BITS, WORKER_BITS
from swath.rollout.failures import VoidRows
from swath.rollout.hosts.base import ArrayHost, closed_on_failure
from swath.rollout.hosts.gymnasium import EnvListHost, MultiAgentHost
from swath.rollout.hosts.vector import VectorHost, is_vector_env
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.config.envs import env_space
from swath.rollout_workers.config.policy_spec import everything_to_default, mapper
from swath.rollout_workers.env_runner import EnvContext
from swath.rollout_workers.metrics import COUNTERS, MetricsLog, PerfStats
from swath.rollout_workers.multi_agent_env import MultiAgentEnv, as_multi_agent
from swath.rollout_workers.sampling.sampler import Sampler
from swath.rollout_workers.sampling.slots import LONE_AGENT, Quota
from swath.rollout_workers.vector_env import OwnVectorHost, VectorEnv

SERVED = (
    "a gymnasium Env, a MultiAgentEnv or PettingZoo env, a swath.rollout_workers.VectorEnv, a gymnasium VectorEnv, "
    "EnvPool or ALE vector env, or None; a TorchRL EnvBase goes to a swath.Collector"
)

LONGEST_DELAY = 5.0
"""Seconds before a sub-env is built anew, if the first delay is less."""

T = TypeVar("T")


class EnvView:
    """All envs of a worker.

    Args:
        host: that steps them.
        spaces: of one sub-env, before preprocessing.
    """

    def __init__(self, host: ArrayHost, spaces: tuple[Any, Any]) -> None:
        self._host, self.stop, self.num_envs = host, host.close, host.spec.num_envs
        self.observation_space, self.action_space = spaces
        self.vector_env = self

    def get_sub_environments(self) -> list[Any]:
        """The sub-envs, or the vector env if it shows none."""
        env = self._host.env
        shown = env.get_sub_environments() if isinstance(env, VectorEnv) else getattr(env, "envs", ())
        if is_vector_env(env) or isinstance(env, VectorEnv):
            return list(shown) if shown and isinstance(shown, list | tuple) else [env]
        return list(env) if isinstance(env, list) else [env]

    envs = property(get_sub_environments)


class Envs:
    """The envs of a worker: checked, and shown to callbacks; all are closed if one cannot be made.

    Args:
        worker: the `RolloutWorker`.
        validate: `f(env, EnvContext)`, which raises to refuse; None refuses nothing.

    Attributes:
        worker: whose they are.
        is_empty: the creator makes none; then there is nothing else.
        contexts: what each was made with; copies for all but the first sub-env of a vector env.
        host: steps them.
        view: of all of them.
        spaces: of one, before preprocessing.
        failures: what becomes of envs that raise.
        log: keeps the metrics of episodes.
        timer: times the steps.
        counts: what was done, by `COUNTERS`.
        episode_ids: that were never given before.
        unroll_ids: likewise, of chunks.
        sampler: samples with the policies; there once they are, by `begin_sampling`.

    Raises:
        TypeError: the creator makes something else, or envs with spaces of another kind.
        ValueError: envs that differ in their spaces, or the same one twice.
        Exception: what the creator, the check or a callback raised, as its own type with a note.
    """

    sampler: Sampler

    def __init__(self, worker: Any, validate: Callable[[Any, EnvContext], Any] | None) -> None:
        self.worker, self._validate = worker, validate
        self.log, self.timer, self.counts = MetricsLog(), PerfStats(), dict.fromkeys(COUNTERS, 0)
        self.contexts: dict[int, EnvContext] = {}
        envs: list[Any] = []
        with closed_on_failure(envs):
            self._make_all(envs)
            self.is_empty = not envs
            if not envs:
                return
            self.host = self._host_of(envs)
            self._has_agents = isinstance(envs[0], MultiAgentEnv)
            self.spaces = (env_space(envs[0], "observation"), env_space(envs[0], "action"))
            self.view = EnvView(self.host, self.spaces)
            self._renewals = [0] * self.host.spec.num_envs
            for number in range(len(envs), self.host.spec.num_envs):
                self.contexts[number] = worker.env_context.copy_with_overrides(vector_index=number)
            alone, restarts, config = isinstance(self.host, EnvListHost | MultiAgentHost), None, worker.config
            if config.restart_failed_sub_environments:
                delay, most = config.delay_between_sub_environment_restarts_s, config.max_num_sub_environment_restarts
                restarts = Restarts(most, backoff_s=delay, backoff_max_s=max(LONGEST_DELAY, delay))
            self.failures = VoidRows(restarts, self._renew if alone else None, self._new_seed)
            self._seed()

    @property
    def first(self) -> Any:
        """Sub-env 0 as it was made, or the vector env."""
        env = self.host.env
        return env[0] if isinstance(env, list) else env

    def begin_sampling(self) -> None:
        """The worker's policies act.

        Raises:
            ValueError: they are several, and the env has one agent; or more sub-envs are to be handed out than there
                are, or a view is required that is not served.
        """
        if not self._has_agents and len(self.worker.policy_map) > 1:
            ids = sorted(self.worker.policy_map)
            raise ValueError(f"policies {ids} for {self.first}, which has one agent; give one policy")
        self._sample_anew()

    def sample(
        self, complete: Callable[[dict[str, SampleBatch], int], T], *, explore: bool | None, force_reset: bool
    ) -> T:
        """What `complete` makes of the batches by policy id, and how many env steps they are from.

        Args:
            complete: makes it.
            explore: whether actions are sampled; None: as the settings of each policy say.
            force_reset: new episodes begin in all envs.
        """
        if not self._has_agents:
            self._require_one_policy()
        if force_reset:
            self.sampler.start_over()
        self.sampler.quota = self._quota()
        return self.sampler.sample(self.worker.policy_version, explore, complete)

    def _require_one_policy(self) -> None:
        """If the policy that acts was removed, another one acts in new episodes; it must be the one that is mapped."""
        policies, mapping = self.worker.policy_map, self.worker.policy_mapping_fn
        if policies.get(self._lone[0]) is not self._lone[1] and policies:
            self.sampler.start_over()
            self.sampler.discard_waiting()
            self._sample_anew()
        lone = self._lone[0]
        mapped = lone if mapping is everything_to_default else mapper(mapping)(LONE_AGENT, None, worker=self.worker)
        if mapped != lone:
            why = f"in an env with one agent {lone!r} acts"
            raise KeyError(f"policy_mapping_fn gave {mapped!r} for agent {LONE_AGENT!r}; {why}")

    def _sample_anew(self) -> None:
        """Make a sampler, which goes on to count where another one was."""
        if not self._has_agents:
            self._lone = next(iter(self.worker.policy_map.items()))
        self.sampler = Sampler(self, None if self._has_agents else self._lone[0], self.counts)
        self.sampler.quota = self._quota()

    def _quota(self) -> Quota:
        """When a batch is complete, as the config says now."""
        worker, n = self.worker, self.host.spec.num_envs
        return Quota.of(worker.config, worker.worker_index, n, many_agents=self._has_agents)

    def _seed(self) -> None:
        seeds = self.worker.seeds
        first = (self.worker.worker_index << WORKER_BITS) + (self.worker.life << LIFE_BITS)
        self.episode_ids, self.unroll_ids = count(first), count(first)
        self.failures.start_over()
        self.failures.seed(None if seeds is None else seeds.first(self.host.spec.num_envs))

    def _renew(self, env: int) -> None:
        """Make one sub-env anew."""
        assert isinstance(self.host, EnvListHost | MultiAgentHost)
        self.host.renew(env, lambda: self._make(env))

    def _new_seed(self, env: int) -> int | None:
        """The seed of an env that was made anew."""
        self._renewals[env] += 1
        seeds, n = self.worker.seeds, self.host.spec.num_envs
        seed: int | None = None if seeds is None else seeds.renewed(env, n, self._renewals[env])
        return seed

    def _make(self, number: int) -> Any:
        """The env of this number; None if the creator makes none."""
        worker = self.worker
        context = worker.env_context.copy_with_overrides(vector_index=number)
        made: list[Any] = []
        with noted(f"the making of sub-env {number} of worker {context.worker_index}"), closed_on_failure(made):
            env = as_multi_agent(worker.env_creator(context))
            if env is not None:
                made.append(env)
                if self._validate is not None:
                    self._validate(env, context)
                worker.callbacks.on_sub_environment_created(
                    worker=worker, env_runner=worker, sub_environment=env, env_context=context, env_index=number
                )
        self.contexts[number] = context
        return env

    def _make_all(self, envs: list[Any]) -> None:
        """Sub-envs in order, or the one vector env; none if there is to be none."""
        while len(envs) < self.worker.config.num_envs_per_env_runner:
            env = self._make(len(envs))
            if env is None and not envs:
                return
            if any(env is other for other in envs):
                raise ValueError("env_creator returned the same env twice; it must make a new one at each call")
            several = isinstance(env, VectorEnv) or is_vector_env(env)
            if not isinstance(env, gym.Env) and not (several and not envs):
                after = f" for vector_index={len(envs)}, after {envs[0]}; make envs of one kind" if envs else ""
                raise TypeError(f"env_creator made {env!r}{after or f'; it must make {SERVED}'}")
            envs.append(env)
            if several:
                return

    def _host_of(self, envs: list[Any]) -> ArrayHost:
        """What steps these envs."""
        first = envs[0]
        if isinstance(first, MultiAgentEnv):
            return MultiAgentHost(envs)
        if isinstance(first, VectorEnv):
            return OwnVectorHost(first, lambda: self._make(0))
        if is_vector_env(first):
            host: ArrayHost = VectorHost(first, lambda: [self._make(0)], exact=True)
            return host
        return EnvListHost(envs, exact=True)
