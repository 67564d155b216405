"""From a worker's envs and policies to its sampler, for envs of one agent each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from swath.options import Restarts
from swath.rollout.episodes.ids import TrajectoryIds
from swath.rollout.failures import VoidRows
from swath.rollout.hosts.base import ArrayHost
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout_workers.actions import ActionProcessor, reward_clip
from swath.rollout_workers.callbacks import listeners
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.mapping import mapper
from swath.rollout_workers.filters.base import Filter, NoFilter
from swath.rollout_workers.hosts.processing import ProcessingHost
from swath.rollout_workers.hosts.seating import SeatingHost
from swath.rollout_workers.metrics import MetricsLog
from swath.rollout_workers.nests import template_of
from swath.rollout_workers.perf_stats import PerfStats
from swath.rollout_workers.preprocessors import NoPreprocessor
from swath.rollout_workers.sampling.actor import PolicyActor, Surface
from swath.rollout_workers.sampling.asking import Wants
from swath.rollout_workers.sampling.chunks import UnrollIds
from swath.rollout_workers.sampling.finishing import Finisher
from swath.rollout_workers.sampling.post_processor import PostProcessor
from swath.rollout_workers.sampling.sampler import Quota, Sampler, SamplerParts
from swath.rollout_workers.sampling.watching import Scene, Watch
from swath.rollout_workers.worker.env_making import EnvMaker, shown
from swath.rollout_workers.worker.policies import Policies
from swath.rollout_workers.worker.seeding import Seeds

LONGEST_DELAY = 5.0
"""Seconds before a sub-env is built anew, if the first delay is less."""


@dataclass(frozen=True)
class Station:
    """Who samples.

    Attributes:
        worker: the worker, for callbacks.
        seeds: its seeds; None: nothing is seeded.
        base_env: the view of its envs, for callbacks.
        log: keeps what there is to tell of episodes.
        unrolls: numbers chunks.
        laps: times the steps.
    """

    worker: Any
    seeds: Seeds | None
    base_env: Any
    log: MetricsLog
    unrolls: UnrollIds
    laps: PerfStats


def failures_of(host: ArrayHost, maker: EnvMaker, station: Station) -> VoidRows:
    """What becomes of envs that raise, with the seeds of their first resets."""
    n, seeds = host.spec.num_envs, station.seeds
    times = [0] * n

    def new_seed(env: int) -> int | None:
        times[env] += 1
        return None if seeds is None else seeds.renewed(env, n, times[env])

    first = None if seeds is None else seeds.first(n)
    return VoidRows(_restarts(station.worker.config), _renewing(host, maker), new_seed, first)


def _restarts(config: AlgorithmConfig) -> Restarts | None:
    if not config.restart_failed_sub_environments:
        return None
    delay = config.delay_between_sub_environment_restarts_s
    longest = max(LONGEST_DELAY, delay)
    return Restarts(config.max_num_sub_environment_restarts, backoff_s=delay, backoff_max_s=longest)


def make_sampler(
    host: ArrayHost, failures: VoidRows, policies: Policies, ids: TrajectoryIds, station: Station
) -> Sampler:
    """The sampler of the first policy, which acts in all envs.

    Raises:
        ValueError: more sub-envs are to be handed out than there are; a view requirement that is not served.
    """
    policy_id, policy = next(iter(policies.map.items()))
    setting = partial(policies.setting, policy_id)
    preprocessor, laps = policies.preprocessors[policy_id], station.laps
    current_filter = filter_of(policies, policy_id)
    if not (isinstance(preprocessor, NoPreprocessor) and isinstance(current_filter(), NoFilter)):
        host = ProcessingHost(host, preprocessor, current_filter, laps)
    n, wants = host.spec.num_envs, Wants.of(policy)
    ids.begin()
    told, scene = listeners(policies.callbacks, "on_postprocess_trajectory"), scene_of(host, policies, station)
    post = PostProcessor(told, scene.worker, scene.policy_map)
    watch: Watch | None = None
    if wants.episodes or scene.is_watched or post.is_chunk_by_chunk(policy):
        watch = Watch(scene, n, ids.next_id, host.info_of)
    finisher = Finisher(
        policy_id,
        policy,
        wants,
        template_of(preprocessor.observation_space),
        station.unrolls,
        post,
        None if watch is None else watch.episode,
    )
    processor = ActionProcessor(
        host.spec.action_space, normalize=setting("normalize_actions"), clip=setting("clip_actions")
    )
    surface = Surface(host.spec, preprocessor.observation_space, processor)
    actor = PolicyActor(policy, surface, laps, host.info_of, watch, setting("explore"))
    clip = reward_clip(setting("clip_rewards"))
    parts = SamplerParts(host, failures, actor, finisher, ids, station.log, clip, watch)
    return Sampler(parts, quota_of(station.worker.config, station.worker.worker_index, n))


def quota_of(config: AlgorithmConfig, worker_index: int, num_envs: int) -> Quota:
    """What a call hands out.

    Raises:
        ValueError: more sub-envs than there are.
    """
    wanted = config.num_envs_per_env_runner
    if wanted > num_envs:
        raise ValueError(f"num_envs_per_env_runner={wanted}, but the vector env has {num_envs} sub-envs")
    length = config.get_rollout_fragment_length(worker_index)
    return Quota(length, wanted, config.batch_mode == "complete_episodes")


def _renewing(host: ArrayHost, maker: EnvMaker) -> Callable[[int], None] | None:
    """How one sub-env is made anew; None where that cannot be."""
    if isinstance(host, EnvListHost | SeatingHost):
        return lambda env: host.renew(env, lambda: maker.make(env))
    return None


def filter_of(policies: Policies, policy_id: str) -> Callable[[], Filter]:
    """The policy's filter of the moment; the last one, once the policy is removed."""
    last = policies.filters[policy_id]

    def current() -> Filter:
        nonlocal last
        last = policies.filters.get(policy_id, last)
        return last

    return current


def scene_of(host: ArrayHost, policies: Policies, station: Station) -> Scene:
    """What callbacks and episodes are told of a worker."""

    def sub_env(number: int) -> Any:
        envs = shown(host)
        return envs[number] if number < len(envs) else None

    return Scene(
        station.worker,
        policies.callbacks,
        policies.map,
        lambda: mapper(policies.mapping),
        sub_env,
        station.base_env,
    )
