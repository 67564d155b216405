"""Settings for when things go wrong: who is replaced, how often, and how long is waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, Unpack

from swath.rollout_workers.config.checks import due, flag, optional, wait, whole
from swath.rollout_workers.config.holder import Holder
from swath.rollout_workers.config.settings import UNCHANGED, Setting

if TYPE_CHECKING:
    from swath.rollout_workers.config.other_names import OtherNames


class FaultToleranceSettings(Holder):
    """What `fault_tolerance` sets."""

    restart_failed_env_runners = Setting(
        flag, default=True, also=("recreate_failed_workers", "recreate_failed_env_runners")
    )
    ignore_env_runner_failures = Setting(flag, default=False, also=("ignore_worker_failures",))
    max_num_env_runner_restarts = Setting(whole(), default=1000, also=("max_num_worker_restarts",))
    delay_between_env_runner_restarts_s = Setting(wait, default=1.0, also=("delay_between_worker_restarts_s",))
    num_consecutive_env_runner_failures_tolerance = Setting(
        whole(), default=100, also=("num_consecutive_worker_failures_tolerance",)
    )
    restart_failed_sub_environments = Setting(flag, default=False)
    env_runner_health_probe_timeout_s = Setting(wait, default=30.0, also=("worker_health_probe_timeout_s",))
    env_runner_restore_timeout_s = Setting(due, default=120.0, also=("worker_restore_timeout_s",))
    env_runner_hang_timeout_s = Setting(optional(due), default=300.0)
    max_num_sub_environment_restarts = Setting(whole(), default=5)
    delay_between_sub_environment_restarts_s = Setting(wait, default=0.1)

    def fault_tolerance(
        self,
        restart_failed_env_runners: bool = UNCHANGED,
        *,
        ignore_env_runner_failures: bool = UNCHANGED,
        max_num_env_runner_restarts: int = UNCHANGED,
        delay_between_env_runner_restarts_s: float = UNCHANGED,
        num_consecutive_env_runner_failures_tolerance: int = UNCHANGED,
        restart_failed_sub_environments: bool = UNCHANGED,
        env_runner_health_probe_timeout_s: float = UNCHANGED,
        env_runner_restore_timeout_s: float = UNCHANGED,
        env_runner_hang_timeout_s: float | None = UNCHANGED,
        max_num_sub_environment_restarts: int = UNCHANGED,
        delay_between_sub_environment_restarts_s: float = UNCHANGED,
        **others: Unpack[OtherNames],
    ) -> Self:
        """Say who is replaced when workers die or envs raise, and how long is waited.

        Args:
            restart_failed_env_runners: a worker that died is replaced.
            ignore_env_runner_failures: else it is left out; with neither, its death is raised.
            max_num_env_runner_restarts: replacements per worker.
            delay_between_env_runner_restarts_s: seconds before the second replacement, doubling up to 30.
            num_consecutive_env_runner_failures_tolerance: deaths in a row that a set bears.
            restart_failed_sub_environments: a sub-env that raised is rebuilt; else its exception is raised.
            env_runner_health_probe_timeout_s: how long `probe_unhealthy_workers` waits.
            env_runner_restore_timeout_s: seconds for any worker to start up.
            env_runner_hang_timeout_s: a request that takes longer is a death; None: no limit.
            max_num_sub_environment_restarts: failures of a sub-env in a row that are borne.
            delay_between_sub_environment_restarts_s: seconds before it is rebuilt, doubling to 5.
            **others: old names, and settings without effect.
        """
        return self._given(locals())
