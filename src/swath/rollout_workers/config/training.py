"""Settings of learning: what the policies that are shipped read when they update themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, Unpack

from swath.rollout_workers.config.checks import flag, number, optional, positive, schedule, table, whole, word
from swath.rollout_workers.config.holder import Holder
from swath.rollout_workers.config.joining import shallow
from swath.rollout_workers.config.model import MODEL_DEFAULTS, model, warn_of_unread_keys
from swath.rollout_workers.config.settings import UNCHANGED, NoEffect, Setting

if TYPE_CHECKING:
    from swath.rollout_workers.config.other_names import OtherNames

Schedule: TypeAlias = Sequence[Sequence[float]]


class _Model(Setting[dict[str, Any]]):
    """The one setting whose own keys can be without effect."""

    def keep(self, values: dict[str, Any], value: dict[str, Any]) -> None:
        """Keep a checked value."""
        super().keep(values, value)
        warn_of_unread_keys(value)


class TrainingSettings(Holder):
    """What `training` sets."""

    gamma = Setting(number(0, 1), default=0.99)
    lr = Setting(number(), default=0.001)
    lr_schedule = Setting(optional(schedule), default=None)
    grad_clip = Setting(optional(positive), default=None)
    grad_clip_by = Setting(word("global_norm", "norm", "value"), default="global_norm")
    train_batch_size = Setting(whole(1), default=32)
    num_epochs = Setting(whole(1), default=1, also=("num_sgd_iter",))
    minibatch_size = Setting(optional(whole()), default=None, also=("sgd_minibatch_size",))
    model = _Model(model, default=MODEL_DEFAULTS, join=shallow)
    optimizer = Setting(table, default={}, join=shallow)
    lambda_ = Setting(number(0, 1), default=1.0, also=("lambda",))
    use_gae = Setting(flag, default=True)
    use_critic = Setting(flag, default=True)
    clip_param = Setting(number(), default=0.3)
    vf_clip_param = Setting(number(), default=10.0)
    vf_loss_coeff = Setting(number(), default=1.0)
    entropy_coeff = Setting(number(), default=0.0)
    entropy_coeff_schedule = Setting(optional(schedule), default=None)
    use_kl_loss = Setting(flag, default=True)
    kl_coeff = Setting(number(), default=0.2)
    kl_target = Setting(number(), default=0.01)
    ignore_action_bounds = Setting(flag, default=False)
    shuffle_batch_per_epoch = NoEffect(flag, "minibatches are always shuffled", default=True)

    def training(
        self,
        gamma: float = UNCHANGED,
        *,
        lr: float = UNCHANGED,
        lr_schedule: Schedule | None = UNCHANGED,
        grad_clip: float | None = UNCHANGED,
        grad_clip_by: Literal["global_norm", "norm", "value"] = UNCHANGED,
        train_batch_size: int = UNCHANGED,
        num_epochs: int = UNCHANGED,
        minibatch_size: int | None = UNCHANGED,
        model: Mapping[str, Any] = UNCHANGED,
        optimizer: Mapping[str, Any] = UNCHANGED,
        lambda_: float = UNCHANGED,
        use_gae: bool = UNCHANGED,
        use_critic: bool = UNCHANGED,
        clip_param: float = UNCHANGED,
        vf_clip_param: float = UNCHANGED,
        vf_loss_coeff: float = UNCHANGED,
        entropy_coeff: float = UNCHANGED,
        entropy_coeff_schedule: Schedule | None = UNCHANGED,
        use_kl_loss: bool = UNCHANGED,
        kl_coeff: float = UNCHANGED,
        kl_target: float = UNCHANGED,
        ignore_action_bounds: bool = UNCHANGED,
        **others: Unpack[OtherNames],
    ) -> Self:
        """Say how policies learn.

        Args:
            gamma: discount.
            lr: learning rate.
            lr_schedule: `[[step, rate], …]` from step 0, interpolated at `global_timestep`; None: `lr` always.
            grad_clip: bound of gradients; None: none.
            grad_clip_by: what is bounded: the norm of all, of each, or every element.
            train_batch_size: env steps of all workers together, for `rollout_fragment_length="auto"`.
            num_epochs: passes of `sample_and_learn` over its batch.
            minibatch_size: rows of a minibatch there; None or 0: the whole batch.
            model: the default network; added to what is there, key by key.
            optimizer: keywords of Adam; likewise.
            lambda_: of generalised advantage estimation.
            use_gae: advantages by it, else discounted returns.
            use_critic: advantages are relative to the value function.
            clip_param: how far PPO's ratio may leave 1.
            vf_clip_param: bound of the value function's squared error.
            vf_loss_coeff: weight of the value function's loss.
            entropy_coeff: weight of the entropy.
            entropy_coeff_schedule: as `lr_schedule`; None: `entropy_coeff` always.
            use_kl_loss: whether the KL divergence is part of PPO's loss.
            kl_coeff: its weight at the start.
            kl_target: what `update_kl` steers it to.
            ignore_action_bounds: `RandomPolicy` acts as if a `Box` were unbounded.
            **others: old names, and settings without effect.
        """
        return self._given(locals())
