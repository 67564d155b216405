"""The envs of a worker, all that steps them, and which policy acts in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from swath.rollout.episodes.ids import TrajectoryIds
from swath.rollout.hosts.base import ArrayHost
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.config.spaces import env_space
from swath.rollout_workers.metrics import SamplerCounts
from swath.rollout_workers.sampling.sampler import Sampler
from swath.rollout_workers.worker.env_making import EnvMaker, host_of, shown
from swath.rollout_workers.worker.policies import Policies
from swath.rollout_workers.worker.sampling_setup import Station, failures_of, make_sampler


class EnvView:
    """All envs of a worker.

    Args:
        host: that steps them.
        spaces: of one sub-env, before preprocessing.
        stop: closes them.
    """

    def __init__(self, host: ArrayHost, spaces: tuple[Any, Any], stop: Callable[[], None]) -> None:
        self._host = host
        self.observation_space, self.action_space = spaces
        self.stop = stop
        self.num_envs = host.spec.num_envs

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


Complete: TypeAlias = Callable[[dict[str, SampleBatch], int], Any]
"""Is given batches by policy id, and how many env steps they are from."""


class Envs:
    """The envs of a worker.

    Args:
        envs: as they were made; at least one.
        maker: makes more like them.
        station: who samples.

    Raises:
        ValueError: fewer sub-envs than are to be handed out.
        TypeError: spaces of another kind.
    """

    def __init__(self, envs: list[Any], maker: EnvMaker, station: Station) -> None:
        self.maker = maker
        self.host = self._made_host(envs)
        self.spaces = (env_space(envs[0], "observation"), env_space(envs[0], "action"))
        self.failures = failures_of(self.host, maker, station)
        self.view = EnvView(self.host, self.spaces, self.close)
        self._station = replace(station, base_env=self.view)
        self._ids = TrajectoryIds(self.host.spec.num_envs, worker=station.worker.worker_index, life=station.worker.life)
        self._policies: Policies | None = None
        self._sampler: Sampler | None = None

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

    @property
    def sampler(self) -> Sampler:
        """What samples."""
        assert self._sampler is not None, "act_with comes first"
        return self._sampler

    def act_with(self, policies: Policies) -> None:
        """These policies act.

        Raises:
            ValueError: they are several, and the env has one agent.
        """
        if len(policies.map) > 1:
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
        sampler = self._current()
        if force_reset:
            sampler.start_over()
        assert self._policies is not None, "act_with comes first"
        policy_id = sampler.parts.finisher.policy_id
        explores = self._policies.setting(policy_id, "explore") if explore is None else explore
        sampler.parts.actor.explore = explores
        return sampler.sample(
            version, lambda batch, n_steps: complete({policy_id: batch} if batch.count else {}, n_steps)
        )

    def begin_life(self, station: Station) -> None:
        """Go on as in another life: other ids and seeds, and new episodes in all envs."""
        self._station = replace(station, base_env=self.view)
        n = self.host.spec.num_envs
        self._ids = TrajectoryIds(n, worker=station.worker.worker_index, life=station.worker.life)
        self.failures.start_over()
        self.failures.seed(None if station.seeds is None else station.seeds.first(n))
        if self._policies is not None:
            self._sample_with(self._policies, self.counts)

    def close(self) -> None:
        """Close the envs."""
        self.host.close()

    def _made_host(self, envs: list[Any]) -> ArrayHost:
        """What steps the envs."""
        return host_of(envs, self.maker)

    def _current(self) -> Sampler:
        """The sampler of the policy that acts; if that was removed, another one acts in new episodes."""
        assert self._policies is not None
        acting = self.sampler.parts.finisher
        if self._policies.map.get(acting.policy_id) is not acting.policy and self._policies.map:
            before = self.sampler
            before.start_over()
            before.discard_waiting()
            self._sample_with(self._policies, before.counts)
        return self.sampler

    def _sample_with(self, policies: Policies, counts: SamplerCounts) -> None:
        """Make a sampler that goes on to count where another one was."""
        self._sampler = make_sampler(self.host, self.failures, policies, self._ids, self._station)
        self._sampler.counts = counts
