"""Settings of what is mostly done elsewhere: evaluation, reports, checkpoints, data, and what is not served at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from swath.rollout_workers.config.checks import flag, number, optional, refuse, whole, word
from swath.rollout_workers.config.holder import Holder
from swath.rollout_workers.config.joining import deep
from swath.rollout_workers.config.settings import UNCHANGED, NoEffect, Setting

if TYPE_CHECKING:
    from swath.rollout_workers.config.other_names import OtherNames

_NO_ALGORITHM = "no algorithm reports here: collect_metrics sums up what workers finished since the last call"
_NO_CHECKPOINTS = "nothing writes checkpoints here: worker.get_state() is a plain dict to save"


def _overrides(name: str, value: object) -> Any:
    if not isinstance(value, Mapping | Holder):
        refuse(name, value, "a dict of settings, AlgorithmConfig.overrides(…), an AlgorithmConfig, or None")
    return dict(value) if isinstance(value, Mapping) else value


class RemainderSettings(Holder):
    """What `evaluation`, `reporting`, `checkpointing`, `experimental` and `offline_data` set."""

    evaluation_config = Setting(optional(_overrides), default=None, join=deep)
    in_evaluation = Setting(flag, default=False)
    keep_per_episode_custom_metrics = Setting(flag, default=False)
    _disable_preprocessor_api = Setting(flag, default=False)
    input_ = Setting(word("sampler", "dataset"), default="sampler", also=("input",))
    metrics_episode_collection_timeout_s = NoEffect(optional(number()), _NO_ALGORITHM, default=None)
    metrics_num_episodes_for_smoothing = NoEffect(optional(whole()), _NO_ALGORITHM, default=None)
    min_time_s_per_iteration = NoEffect(optional(number()), _NO_ALGORITHM, default=None)
    min_train_timesteps_per_iteration = NoEffect(whole(), _NO_ALGORITHM, default=0)
    min_sample_timesteps_per_iteration = NoEffect(whole(), _NO_ALGORITHM, default=0)
    log_gradients = NoEffect(flag, _NO_ALGORITHM, default=False)
    export_native_model_files = NoEffect(flag, _NO_CHECKPOINTS, default=False)
    checkpoint_trainable_policies_only = NoEffect(flag, _NO_CHECKPOINTS, default=False)

    def evaluation(
        self,
        evaluation_config: Mapping[str, Any] | Holder | None = UNCHANGED,
        *,
        in_evaluation: bool = UNCHANGED,
        **others: Unpack[OtherNames],
    ) -> Self:
        """Say what is different for workers that evaluate.

        Args:
            evaluation_config: overrides, added to what is there dict by dict; or a whole config.
            in_evaluation: these workers do; their seeds are not those of training.
            **others: old names, and settings without effect.
        """
        return self._given(locals())

    def reporting(self, keep_per_episode_custom_metrics: bool = UNCHANGED, **others: Unpack[OtherNames]) -> Self:
        """Say what `collect_metrics` gives.

        Args:
            keep_per_episode_custom_metrics: custom metrics as lists, one value per episode.
            **others: old names, and settings without effect.
        """
        return self._given(locals())

    def checkpointing(self, **others: Unpack[OtherNames]) -> Self:
        """Nothing here writes checkpoints: what is set has no effect, and is warned of."""
        return self._given(locals())

    def experimental(self, _disable_preprocessor_api: bool = UNCHANGED, **others: Unpack[OtherNames]) -> Self:
        """Say what is done differently from the rule.

        Args:
            _disable_preprocessor_api: observations reach policies as the env returned them.
            **others: old names, and settings without effect.
        """
        return self._given(locals())

    def offline_data(self, input_: Literal["sampler", "dataset"] = UNCHANGED, **others: Unpack[OtherNames]) -> Self:
        """Say where rows come from.

        Args:
            input_: envs, or the worker's `dataset_shards`.
            **others: old names, and settings without effect.
        """
        return self._given(locals())

    def rl_module(self, **others: Unpack[OtherNames]) -> Self:
        """There are no RLModules: each setting is refused, with what to do instead."""
        return self._given(locals())

    def learners(self, **others: Unpack[OtherNames]) -> Self:
        """There are no learners: each setting is refused, with what to do instead."""
        return self._given(locals())
