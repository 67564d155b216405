"""Settings of the workers: how many, how much they collect, and what they run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, Unpack

from swath.rollout_workers.config.checks import amounts, flag, number, optional, wait, whole, word
from swath.rollout_workers.config.holder import Holder
from swath.rollout_workers.config.settings import UNCHANGED, NoEffect, Setting

if TYPE_CHECKING:
    from swath.rollout_workers.config.other_names import OtherNames

BatchMode: TypeAlias = Literal["truncate_episodes", "complete_episodes"]
FilterName: TypeAlias = Literal["NoFilter", "MeanStdFilter", "ConcurrentMeanStdFilter"]

_FOR_EVER_MS = 10**6
"""Whoever waits so long for a sub-env means to wait for all."""

_a_filters_name = word("NoFilter", "MeanStdFilter", "ConcurrentMeanStdFilter")


def _length(name: str, value: object) -> int | str:
    return "auto" if value == "auto" else whole(1)(name, value)


def _compress(name: str, value: object) -> bool | str:
    return "bulk" if value == "bulk" else flag(name, value)


def _filter(name: str, value: object) -> str | Callable[[Any], Any]:
    return value if callable(value) else _a_filters_name(name, value)


class EnvRunnersSettings(Holder):
    """What `env_runners` sets, which is also called `rollouts`."""

    num_env_runners = Setting(whole(), default=0, also=("num_workers", "num_rollout_workers"))
    num_envs_per_env_runner = Setting(whole(1), default=1, also=("num_envs_per_worker",))
    rollout_fragment_length = Setting(_length, default=200)
    batch_mode = Setting(word("truncate_episodes", "complete_episodes"), default="truncate_episodes")
    explore = Setting(flag, default=True)
    observation_filter = Setting(_filter, default="NoFilter")
    compress_observations = Setting(_compress, default=False)
    create_local_env_runner = Setting(flag, default=True)
    create_env_on_local_worker = Setting(flag, default=False, also=("create_env_on_driver",))
    num_cpus_per_env_runner = Setting(number(), default=1.0, also=("num_cpus_per_worker",))
    num_gpus_per_env_runner = Setting(number(), default=0.0, also=("num_gpus_per_worker",))
    custom_resources_per_env_runner = Setting(amounts, default={}, also=("custom_resources_per_worker",))
    validate_env_runners_after_construction = Setting(flag, default=True, also=("validate_workers_after_construction",))
    sample_timeout_s = Setting(wait, default=60.0)
    max_requests_in_flight_per_env_runner = Setting(
        whole(1), default=1, also=("max_requests_in_flight_per_sampler_worker",)
    )
    use_worker_filter_stats = Setting(flag, default=True)
    update_worker_filter_stats = Setting(flag, default=True)
    sampler_perf_stats_ema_coef = Setting(optional(number(0, 1)), default=None)
    remote_worker_envs = Setting(flag, default=False)
    gym_env_vectorize_mode = Setting(word("sync", "async"), default="sync")
    preprocessor_pref = NoEffect(
        optional(word("deepmind", "rllib")), "images are not changed: wrap Atari in env_creator", default=None
    )
    remote_env_batch_wait_ms = NoEffect(
        optional(number()), "all sub-envs are awaited", default=None, unless=lambda ms: ms is None or ms >= _FOR_EVER_MS
    )
    use_env_runner_state_server = NoEffect(flag, "workers that come back have it built in", default=False)
    env_runner_state_server_max_concurrency = NoEffect(whole(1), "there is no state server", default=16)

    def env_runners(
        self,
        num_env_runners: int = UNCHANGED,
        *,
        num_envs_per_env_runner: int = UNCHANGED,
        rollout_fragment_length: int | Literal["auto"] = UNCHANGED,
        batch_mode: BatchMode = UNCHANGED,
        explore: bool = UNCHANGED,
        observation_filter: FilterName | Callable[[Any], Any] = UNCHANGED,
        compress_observations: bool | Literal["bulk"] = UNCHANGED,
        create_local_env_runner: bool = UNCHANGED,
        create_env_on_local_worker: bool = UNCHANGED,
        num_cpus_per_env_runner: float = UNCHANGED,
        num_gpus_per_env_runner: float = UNCHANGED,
        custom_resources_per_env_runner: Mapping[str, float] = UNCHANGED,
        validate_env_runners_after_construction: bool = UNCHANGED,
        sample_timeout_s: float = UNCHANGED,
        max_requests_in_flight_per_env_runner: int = UNCHANGED,
        use_worker_filter_stats: bool = UNCHANGED,
        update_worker_filter_stats: bool = UNCHANGED,
        sampler_perf_stats_ema_coef: float | None = UNCHANGED,
        remote_worker_envs: bool = UNCHANGED,
        gym_env_vectorize_mode: Literal["sync", "async"] = UNCHANGED,
        **others: Unpack[OtherNames],
    ) -> Self:
        """Say how many workers there are, how much each collects in a call, and what it runs on.

        Args:
            num_env_runners: remote workers of a set.
            num_envs_per_env_runner: sub-envs of each worker.
            rollout_fragment_length: steps of each sub-env in a call; "auto": what `train_batch_size` needs.
            batch_mode: fragments of that length, or whole episodes of at least that many steps.
            explore: sample actions; False takes the mode.
            observation_filter: by name, or `f(shape) -> Filter`.
            compress_observations: True: row by row; "bulk": whole columns.
            create_local_env_runner: a set with remote workers has worker 0 as well.
            create_env_on_local_worker: worker 0 has an env although there are remote workers.
            num_cpus_per_env_runner: CPUs a worker asks for; also its torch threads.
            num_gpus_per_env_runner: GPUs a worker asks for; above 0 its policies are on one.
            custom_resources_per_env_runner: amounts by name, for Ray.
            validate_env_runners_after_construction: a set waits until all workers are up.
            sample_timeout_s: seconds that `WorkerSet.sample` waits.
            max_requests_in_flight_per_env_runner: asynchronous requests, per worker and tag.
            use_worker_filter_stats: filters of workers count when they are synchronised.
            update_worker_filter_stats: workers get the filters that result.
            sampler_perf_stats_ema_coef: `perf_stats` are moving averages with this weight of the new; None: means.
            remote_worker_envs: every sub-env in a process of its own.
            gym_env_vectorize_mode: "async" is the same as `remote_worker_envs=True`.
            **others: old names, and settings without effect.
        """
        return self._given(locals())

    rollouts = env_runners

    def exploration(self, explore: bool = UNCHANGED, **others: Unpack[OtherNames]) -> Self:
        """Say whether actions are sampled; how is the policy's business.

        Args:
            explore: as in `env_runners`.
            **others: old names, and settings without effect.
        """
        return self._given(locals())
