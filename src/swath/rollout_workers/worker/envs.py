"""The envs of a worker, and what samples from them with the worker's policies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from swath.options import Restarts
from swath.rollout.episodes.ids import LIFE_BITS, WORKER_BITS, TrajectoryIds
from swath.rollout.failures import VoidRows
from swath.rollout.hosts.base import ArrayHost
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout_workers.actions import ActionProcessor, reward_clip
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.callbacks import listeners
from swath.rollout_workers.config.policy_spec import everything_to_default, mapper
from swath.rollout_workers.config.spaces import env_space
from swath.rollout_workers.episode import LONE_AGENT
from swath.rollout_workers.filters.base import NoFilter
from swath.rollout_workers.hosts.processing import ProcessingHost
from swath.rollout_workers.hosts.seating import SeatingHost
from swath.rollout_workers.metrics import MetricsLog, SamplerCounts
from swath.rollout_workers.multi_agent_env import MultiAgentEnv
from swath.rollout_workers.nests import template_of
from swath.rollout_workers.perf_stats import PerfStats
from swath.rollout_workers.preprocessors import NoPreprocessor
from swath.rollout_workers.sampling.actor import PolicyActor, Surface
from swath.rollout_workers.sampling.asking import Wants
from swath.rollout_workers.sampling.chunks import UnrollIds
from swath.rollout_workers.sampling.finishing import Finisher
from swath.rollout_workers.sampling.multi_agent.company import AgentsActor, Company
from swath.rollout_workers.sampling.multi_agent.finishing import Finisher as AgentsFinisher
from swath.rollout_workers.sampling.multi_agent.progress import Plan, Progress
from swath.rollout_workers.sampling.multi_agent.recorder import Recorder
from swath.rollout_workers.sampling.multi_agent.role import Equipment, Role
from swath.rollout_workers.sampling.multi_agent.sampler import MultiAgentParts, MultiAgentSampler
from swath.rollout_workers.sampling.multi_agent.seats import Play
from swath.rollout_workers.sampling.post_processor import PostProcessor
from swath.rollout_workers.sampling.sampler import Quota, Sampler, SamplerParts
from swath.rollout_workers.sampling.watching import Scene, Watch
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

    sampler: Sampler | MultiAgentSampler

    def __init__(self, envs: list[Any], maker: EnvMaker, life: int, seeds: Seeds | None) -> None:
        self.maker, self.log = maker, MetricsLog()
        self._worker, self._config = maker.worker, maker.worker.config
        self._timer = PerfStats()
        self._plays: dict[int, Play] = {}
        self._has_agents = isinstance(envs[0], MultiAgentEnv)
        self.host: ArrayHost = (
            SeatingHost(envs, self._plays, self._role_of, self._timer) if self._has_agents else host_of(envs, maker)
        )
        self.spaces = (env_space(envs[0], "observation"), env_space(envs[0], "action"))
        self.view = EnvView(self.host, self.spaces)
        self._renewals = [0] * self.host.spec.num_envs
        alone = isinstance(self.host, EnvListHost | SeatingHost)
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
        self._seeds, self._ids = seeds, TrajectoryIds(n, worker=index, life=life)
        self._unrolls = UnrollIds((index << WORKER_BITS) + (life << LIFE_BITS))
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
        if isinstance(self.sampler, Sampler):
            self._sample_with_another(self._policies)
        sampler = self.sampler
        if force_reset:
            sampler.start_over()
        if isinstance(sampler, MultiAgentSampler):
            sampler.plan = self._plan()
            sampler.parts.actor.explore = explore
            return sampler.sample(version, complete)
        sampler.quota = self._quota()
        policy_id = sampler.parts.finisher.policy_id
        sampler.parts.actor.explore = self._policies.setting(policy_id, "explore") if explore is None else explore
        return sampler.sample(
            version, lambda batch, n_steps: complete({policy_id: batch} if batch.count else {}, n_steps)
        )

    def _sample_with_another(self, policies: Policies) -> None:
        """If the policy that acts was removed, another one acts in new episodes; it must be the one that is mapped."""
        assert isinstance(self.sampler, Sampler)
        before, acting = self.sampler, self.sampler.parts.finisher
        if policies.map.get(acting.policy_id) is not acting.policy and policies.map:
            before.start_over()
            before.discard_waiting()
            self._sample_with(policies, before.counts)
        if policies.mapping is everything_to_default or policies.mapping is self._checked_mapping:
            return
        policy_id = next(iter(policies.map), acting.policy_id)
        mapped = mapper(policies.mapping)(LONE_AGENT, None, worker=self._worker)
        if mapped != policy_id:
            raise KeyError(
                f"policy_mapping_fn gave {mapped!r} for agent {LONE_AGENT!r}; in an env with one agent {policy_id!r} "
                "acts, the first policy"
            )
        self._checked_mapping = policies.mapping

    def _sample_with(self, policies: Policies, counts: SamplerCounts) -> None:
        """Make a sampler that goes on to count where another one was."""
        self.sampler = self._agents_sampler(policies) if self._has_agents else self._lone_sampler(policies)
        self.sampler.counts = counts

    def _lone_sampler(self, policies: Policies) -> Sampler:
        """The sampler of the first policy, which acts in all envs."""
        policy_id, policy = next(iter(policies.map.items()))
        setting, current_filter = partial(policies.setting, policy_id), policies.filter_of(policy_id)
        host, preprocessor = self.host, policies.preprocessors[policy_id]
        if not (isinstance(preprocessor, NoPreprocessor) and isinstance(current_filter(), NoFilter)):
            host = ProcessingHost(host, preprocessor, current_filter, self._timer)
        quota, wants = self._quota(), Wants.of(policy)
        self._ids.begin()
        scene = self._scene(policies, lambda: lambda *_, **__: policy_id)
        post = PostProcessor(listeners(policies.callbacks, "on_postprocess_trajectory"), self._worker, policies.map)
        watch: Watch | None = None
        if wants.episodes or scene.is_watched or post.is_chunk_by_chunk(policy):
            watch = Watch(scene, host.spec.num_envs, self._ids.next_id, host.info_of)
        episode = None if watch is None else watch.episode
        seen = preprocessor.observation_space
        finisher = Finisher(policy_id, policy, wants, template_of(seen), self._unrolls, post, episode)
        surface = Surface(host.spec, seen, _processor(host.spec.action_space, setting))
        actor = PolicyActor(policy, surface, self._timer, host.info_of, watch, setting("explore"))
        clip = reward_clip(setting("clip_rewards"))
        return Sampler(SamplerParts(host, self.failures, actor, finisher, self._ids, self.log, clip, watch), quota)

    def _agents_sampler(self, policies: Policies) -> MultiAgentSampler:
        """The sampler of all policies, each of which acts for the agents that are mapped to it."""
        self._plays.clear()
        scene, progress = self._scene(policies, lambda: mapper(policies.mapping)), Progress(self.host.spec.num_envs)
        post = PostProcessor(listeners(policies.callbacks, "on_postprocess_trajectory"), self._worker, policies.map)
        parts = MultiAgentParts(
            host=self.host,
            failures=self.failures,
            actor=AgentsActor(self._timer.lap),
            company=Company(scene, partial(_equipment, policies), self._plays, count(self._ids.next_id)),
            recorder=Recorder(progress),
            finisher=AgentsFinisher(self._unrolls, post),
            log=self.log,
            laps=self._timer,
            scene=scene,
        )
        return MultiAgentSampler(parts, self._plan(), progress)

    def _plan(self) -> Plan:
        """When a batch of several agents is complete, as the config says now."""
        length = self._config.get_rollout_fragment_length(self._worker.worker_index)
        return Plan.of(self._config, length, self.host.spec.num_envs)

    def _quota(self) -> Quota:
        """When a batch of lone agents is complete, as the config says now."""
        wanted, n = self._config.num_envs_per_env_runner, self.host.spec.num_envs
        if wanted > n:
            raise ValueError(f"num_envs_per_env_runner={wanted}, but the vector env has {n} sub-envs")
        length = self._config.get_rollout_fragment_length(self._worker.worker_index)
        return Quota(length, wanted, self._config.batch_mode == "complete_episodes")

    def _scene(self, policies: Policies, mapping: Callable[[], Callable[..., str]]) -> Scene:
        return Scene(self._worker, policies.callbacks, policies.map, mapping, self._sub_env, self.view)

    def _sub_env(self, number: int) -> Any:
        envs = self.shown
        return envs[number] if number < len(envs) else None

    def _role_of(self, policy_id: str) -> Role:
        assert isinstance(self.sampler, MultiAgentSampler)
        return self.sampler.parts.company.role_of(policy_id)

    def _restarts(self) -> Restarts | None:
        config = self._config
        if not config.restart_failed_sub_environments:
            return None
        delay = config.delay_between_sub_environment_restarts_s
        longest = max(LONGEST_DELAY, delay)
        return Restarts(config.max_num_sub_environment_restarts, backoff_s=delay, backoff_max_s=longest)

    def _renew(self, env: int) -> None:
        """Make one sub-env anew."""
        assert isinstance(self.host, EnvListHost | SeatingHost)
        self.host.renew(env, lambda: self.maker.make(env))

    def _new_seed(self, env: int) -> int | None:
        """The seed of an env that was made anew."""
        self._renewals[env] += 1
        n = self.host.spec.num_envs
        return None if self._seeds is None else self._seeds.renewed(env, n, self._renewals[env])


def _processor(space: Any, setting: Callable[[str], Any]) -> ActionProcessor:
    return ActionProcessor(space, normalize=setting("normalize_actions"), clip=setting("clip_actions"))


def _equipment(policies: Policies, policy_id: str) -> Equipment:
    """What there is for a policy."""
    space, setting = policies.specs[policy_id].action_space, partial(policies.setting, policy_id)
    assert space is not None
    return Equipment(
        policy_id,
        policies.map[policy_id],
        space,
        policies.preprocessors[policy_id],
        policies.filter_of(policy_id),
        _processor(space, setting),
        partial(setting, "explore"),
        reward_clip(setting("clip_rewards")),
    )
