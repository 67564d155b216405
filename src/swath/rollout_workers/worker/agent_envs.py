"""The envs of a worker in which several agents act."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

from swath.rollout.hosts.base import ArrayHost, closed_on_failure
from swath.rollout_workers.actions import ActionProcessor, reward_clip
from swath.rollout_workers.callbacks import listeners
from swath.rollout_workers.hosts.seating import SeatingHost
from swath.rollout_workers.metrics import SamplerCounts
from swath.rollout_workers.multi_agent_env import MultiAgentEnv
from swath.rollout_workers.sampling.multi_agent.company import AgentsActor, Company
from swath.rollout_workers.sampling.multi_agent.finishing import Finisher
from swath.rollout_workers.sampling.multi_agent.progress import Plan, Progress
from swath.rollout_workers.sampling.multi_agent.recorder import Recorder
from swath.rollout_workers.sampling.multi_agent.role import Equipment, Role
from swath.rollout_workers.sampling.multi_agent.sampler import MultiAgentParts, MultiAgentSampler
from swath.rollout_workers.sampling.multi_agent.seats import Play
from swath.rollout_workers.sampling.post_processor import PostProcessor
from swath.rollout_workers.worker.env_making import EnvMaker, make_envs
from swath.rollout_workers.worker.envs import Complete, Envs
from swath.rollout_workers.worker.policies import Policies
from swath.rollout_workers.worker.sampling_setup import Station, filter_of, scene_of


def made_envs(maker: EnvMaker, station: Station) -> Envs | None:
    """Envs that are made now; None if the creator makes none."""
    envs = make_envs(maker, station.worker.config.num_envs_per_env_runner)
    if not envs:
        return None
    kind = AgentEnvs if isinstance(envs[0], MultiAgentEnv) else Envs
    with closed_on_failure(list(envs)):
        return kind(envs, maker, station)


class AgentEnvs(Envs):
    """Envs of several agents each; any number of policies act.

    Args:
        envs: as they were made; at least one.
        maker: makes more like them.
        station: who samples.
    """

    def __init__(self, envs: list[Any], maker: EnvMaker, station: Station) -> None:
        self._laps = station.laps
        self._plays: dict[int, Play] = {}
        self._agents: MultiAgentSampler | None = None
        super().__init__(envs, maker, station)

    @property
    def agents(self) -> MultiAgentSampler:
        """What samples."""
        assert self._agents is not None, "act_with comes first"
        return self._agents

    @property
    def counts(self) -> SamplerCounts:
        """What was done."""
        return self.agents.counts

    def act_with(self, policies: Policies) -> None:
        """These policies act."""
        self._policies = policies
        self._sample_with(policies, SamplerCounts())

    def sample(self, complete: Complete, version: int, *, explore: bool | None, force_reset: bool) -> Any:
        """What `complete` makes of the batches by policy id, and how many env steps they are from."""
        if force_reset:
            self.agents.start_over()
        self.agents.parts.actor.explore = explore
        return self.agents.sample(version, complete)

    def _made_host(self, envs: list[Any]) -> ArrayHost:
        return SeatingHost(envs, self._plays, self._role_of, self._laps)

    def _role_of(self, policy_id: str) -> Role:
        return self.agents.parts.company.role_of(policy_id)

    def _sample_with(self, policies: Policies, counts: SamplerCounts) -> None:
        station = self._station
        self._plays.clear()
        scene, progress = scene_of(self.host, policies, station), Progress(self.host.spec.num_envs)
        told = listeners(scene.callbacks, "on_postprocess_trajectory")
        parts = MultiAgentParts(
            host=self.host,
            failures=self.failures,
            actor=AgentsActor(self._laps.lap),
            company=Company(scene, partial(_equipment, policies), self._plays, count(self._ids.next_id)),
            recorder=Recorder(progress),
            finisher=Finisher(station.unrolls, PostProcessor(told, scene.worker, scene.policy_map)),
            log=station.log,
            laps=self._laps,
            scene=scene,
        )
        length = station.worker.config.get_rollout_fragment_length(station.worker.worker_index)
        plan = Plan.of(station.worker.config, length, self.host.spec.num_envs)
        self._agents = MultiAgentSampler(parts, plan, progress)
        self._agents.counts = counts


def _equipment(policies: Policies, policy_id: str) -> Equipment:
    """What there is for a policy."""
    space, setting = policies.specs[policy_id].action_space, partial(policies.setting, policy_id)
    assert space is not None
    return Equipment(
        policy_id,
        policies.map[policy_id],
        space,
        policies.preprocessors[policy_id],
        filter_of(policies, policy_id),
        ActionProcessor(space, normalize=setting("normalize_actions"), clip=setting("clip_actions")),
        partial(setting, "explore"),
        reward_clip(setting("clip_rewards")),
    )
