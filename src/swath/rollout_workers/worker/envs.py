"""The envs of a worker, and what samples from them with the worker's policies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

from swath.options import Restarts
from swath.rollout.episodes.ids import LIFE_BITS, WORKER_BITS
from swath.rollout.failures import VoidRows
from swath.rollout.hosts.base import ArrayHost
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.multi_agent import MultiAgentHost
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.callbacks import listeners
from swath.rollout_workers.config.policy_spec import everything_to_default, mapper
from swath.rollout_workers.config.spaces import env_space
from swath.rollout_workers.episode import LONE_AGENT
from swath.rollout_workers.metrics import MetricsLog, SamplerCounts
from swath.rollout_workers.multi_agent_env import MultiAgentEnv
from swath.rollout_workers.perf_stats import PerfStats
from swath.rollout_workers.sampling.post_processor import PostProcessor
from swath.rollout_workers.sampling.progress import Quota
from swath.rollout_workers.sampling.sampler import Context, Sampler
from swath.rollout_workers.sampling.watching import EpisodeCallbacks
from swath.rollout_workers.worker.env_making import EnvMaker, host_of, shown
from swath.rollout_workers.worker.policies import Policies
from swath.rollout_workers.worker.process import Seeds

LONGEST_DELAY = 5.0
"""Seconds before a sub-env is built anew, if the first delay is less."""

Complete: TypeAlias = Callable[[dict[str, SampleBatch], int], Any]
"""Is given batches by policy id, and how many env steps they are from."""


class EnvView:
    """All envs of a worker.

    Args:
        host: that steps them.
        spaces: of one sub-env, before preprocessing.
    """

    def __init__(self, host: ArrayHost, spaces: tuple[Any, Any]) -> None:
        self._host, self.stop, self.num_envs = host, host.close, host.spec.num_envs
        self.observation_space, self.action_space = spaces

    @property
    def vector_env(self) -> EnvView:
        """What is stepped together: this view."""
        return self

    @property
    def envs(self) -> list[Any]:
        """The sub-envs."""
        return shown(self._host)

    def get_sub_environments(self) -> list[Any]:
        """The sub-envs."""
        return self.envs


class Envs:
    """The envs of a worker.

    Args:
        envs: as they were made; at least one.
        maker: makes more like them.
        life: which of its lives the worker is in.
        seeds: of the worker; None: nothing is seeded.

    Attributes:
        log: keeps the metrics of episodes.
        sampler: samples with the policies; there once they are, by `act_with`.

    Raises:
        TypeError: spaces of another kind.
    """

    sampler: Sampler

    def __init__(self, envs: list[Any], maker: EnvMaker, life: int, seeds: Seeds | None) -> None:
        self.maker, self.log = maker, MetricsLog()
        self._worker, self._config = maker.worker, maker.worker.config
        self._timer = PerfStats()
        self._has_agents = isinstance(envs[0], MultiAgentEnv)
        self.host: ArrayHost = MultiAgentHost(envs) if self._has_agents else host_of(envs, maker)
        self.spaces = (env_space(envs[0], "observation"), env_space(envs[0], "action"))
        self.view = EnvView(self.host, self.spaces)
        self._renewals = [0] * self.host.spec.num_envs
        alone = isinstance(self.host, EnvListHost | MultiAgentHost)
        self.failures = VoidRows(self._restarts(), self._renew if alone else None, self._new_seed)
        self._policies: Policies | None = None
        self._checked_mapping: Any = None
        self.begin_life(life, seeds)

    @property
    def first(self) -> Any:
        """Sub-env 0 as it was made, or the vector env."""
        env = self.host.env
        return env[0] if isinstance(env, list) else env

    @property
    def shown(self) -> list[Any]:
        """The sub-envs, or the vector env if it shows none."""
        return shown(self.host)

    @property
    def counts(self) -> SamplerCounts:
        """What was done."""
        return self.sampler.counts

    def begin_life(self, life: int, seeds: Seeds | None) -> None:
        """Go on as in this life: other ids and seeds, and new episodes in all envs."""
        n, index = self.host.spec.num_envs, self._worker.worker_index
        first = (index << WORKER_BITS) + (life << LIFE_BITS)
        self._seeds, self._episode_ids, self._unroll_ids = seeds, count(first), count(first)
        self.failures.start_over()
        self.failures.seed(None if seeds is None else seeds.first(n))
        if self._policies is not None:
            self._sample_with(self._policies, self.counts)

    def act_with(self, policies: Policies) -> None:
        """These policies act.

        Raises:
            ValueError: they are several, and the env has one agent; or more sub-envs are to be handed out than there
                are, or a view is required that is not served.
        """
        if not self._has_agents and len(policies.map) > 1:
            raise ValueError(
                f"policies {sorted(policies.map)} for {self.first}, which has one agent; give one policy, or an env "
                "with several agents"
            )
        self._policies = policies
        self._sample_with(policies, SamplerCounts())

    def sample(self, complete: Complete, version: int, *, explore: bool | None, force_reset: bool) -> Any:
        """What `complete` makes of the batches by policy id, and how many env steps they are from.

        Args:
            complete: makes it.
            version: of the weights.
            explore: whether actions are sampled; None: as the settings of each policy say.
            force_reset: new episodes begin in all envs.
        """
        assert self._policies is not None, "act_with comes first"
        if not self._has_agents:
            self._sample_with_another(self._policies)
        if force_reset:
            self.sampler.start_over()
        self.sampler.quota = self._quota()
        return self.sampler.sample(version, explore, complete)

    def _sample_with_another(self, policies: Policies) -> None:
        """If the policy that acts was removed, another one acts in new episodes; it must be the one that is mapped."""
        if policies.map.get(self._lone[0]) is not self._lone[1] and policies.map:
            self.sampler.start_over()
            self.sampler.discard_waiting()
            self._sample_with(policies, self.sampler.counts)
        if policies.mapping is everything_to_default or policies.mapping is self._checked_mapping:
            return
        mapped = mapper(policies.mapping)(LONE_AGENT, None, worker=self._worker)
        if mapped != self._lone[0]:
            raise KeyError(
                f"policy_mapping_fn gave {mapped!r} for agent {LONE_AGENT!r}; in an env with one agent "
                f"{self._lone[0]!r} acts, the first policy"
            )
        self._checked_mapping = policies.mapping

    def _sample_with(self, policies: Policies, counts: SamplerCounts) -> None:
        """Make a sampler that goes on to count where another one was."""
        lone: str | None = None
        if not self._has_agents:
            self._lone = next(iter(policies.map.items()))
            lone = self._lone[0]
        context = Context(
            self._worker,
            policies,
            lambda: mapper(policies.mapping) if lone is None else lambda *_, **__: lone,
            self.failures,
            EpisodeCallbacks(self._worker, self._sub_env, self.view, policies.map),
            PostProcessor(listeners(policies.callbacks, "on_postprocess_trajectory"), self._worker, policies.map),
            self._episode_ids,
            self._unroll_ids,
            self.log,
            self._timer,
        )
        self.sampler = Sampler(self.host, context, lone, counts)
        self.sampler.quota = self._quota()

    def _quota(self) -> Quota:
        """When a batch is complete, as the config says now."""
        index, n = self._worker.worker_index, self.host.spec.num_envs
        return Quota.of(self._config, index, n, many_agents=self._has_agents)

    def _sub_env(self, number: int) -> Any:
        envs = self.shown
        return envs[number] if number < len(envs) else None

    def _restarts(self) -> Restarts | None:
        config = self._config
        if not config.restart_failed_sub_environments:
            return None
        delay = config.delay_between_sub_environment_restarts_s
        longest = max(LONGEST_DELAY, delay)
        return Restarts(config.max_num_sub_environment_restarts, backoff_s=delay, backoff_max_s=longest)

    def _renew(self, env: int) -> None:
        """Make one sub-env anew."""
        assert isinstance(self.host, EnvListHost | MultiAgentHost)
        self.host.renew(env, lambda: self.maker.make(env))

    def _new_seed(self, env: int) -> int | None:
        """The seed of an env that was made anew."""
        self._renewals[env] += 1
        n = self.host.spec.num_envs
        return None if self._seeds is None else self._seeds.renewed(env, n, self._renewals[env])
