"""Settings of where code runs: seeds, logs, variables of processes, GPUs, framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from swath.rollout_workers.config.checks import flag, number, optional, table, whole, word
from swath.rollout_workers.config.holder import Holder
from swath.rollout_workers.config.settings import UNCHANGED, NoEffect, Setting

if TYPE_CHECKING:
    from swath.rollout_workers.config.other_names import OtherNames

_LEVELS = ("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL")


class PlacesSettings(Holder):
    """What `debugging`, `python_environment`, `resources`, `framework` and `api_stack` set."""

    seed = Setting(optional(whole()), default=None)
    fake_sampler = Setting(flag, default=False)
    log_level = Setting(word(*_LEVELS), default="WARN")
    log_sys_usage = NoEffect(flag, "system usage is not logged", default=False)
    extra_python_environs_for_driver = Setting(table, default={})
    extra_python_environs_for_worker = Setting(table, default={})
    num_gpus = Setting(number(), default=0.0)
    _fake_gpus = Setting(flag, default=False)
    framework_str = Setting(word("torch"), default="torch", also=("framework",))

    def debugging(
        self,
        seed: int | None = UNCHANGED,
        *,
        fake_sampler: bool = UNCHANGED,
        log_level: Literal["DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"] = UNCHANGED,
        **others: Unpack[OtherNames],
    ) -> Self:
        """Say what is repeatable, and what is told.

        Args:
            seed: root of all seeds; None: nothing is seeded.
            fake_sampler: one real batch, then copies of it.
            log_level: of the logger `swath`.
            **others: old names, and settings without effect.
        """
        return self._given(locals())

    def python_environment(
        self,
        extra_python_environs_for_driver: Mapping[str, Any] = UNCHANGED,
        *,
        extra_python_environs_for_worker: Mapping[str, Any] = UNCHANGED,
        **others: Unpack[OtherNames],
    ) -> Self:
        """Say which variables are put into `os.environ`.

        Args:
            extra_python_environs_for_driver: of the process of worker 0.
            extra_python_environs_for_worker: of those of the others.
            **others: old names, and settings without effect.
        """
        return self._given(locals())

    def resources(
        self, num_gpus: float = UNCHANGED, *, _fake_gpus: bool = UNCHANGED, **others: Unpack[OtherNames]
    ) -> Self:
        """Say what worker 0 runs on; the others' resources are in `env_runners`.

        Args:
            num_gpus: above 0 its policies are on a GPU.
            _fake_gpus: act as if GPUs were there, on the CPU.
            **others: old names, and settings without effect.
        """
        return self._given(locals())

    def framework(self, framework: Literal["torch"] = UNCHANGED, **others: Unpack[OtherNames]) -> Self:
        """Say that it is torch: there is no other.

        Args:
            framework: `"torch"`.
            **others: old names, and settings without effect.
        """
        return self._given(locals())

    def api_stack(
        self,
        enable_rl_module_and_learner: Literal[False] = UNCHANGED,
        enable_env_runner_and_connector_v2: Literal[False] = UNCHANGED,
    ) -> Self:
        """Say that it is the old one, with policies and rollout workers: there is no other.

        Args:
            enable_rl_module_and_learner: False.
            enable_env_runner_and_connector_v2: False.
        """
        return self._given(locals())
