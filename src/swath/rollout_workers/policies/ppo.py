"""Proximal policy optimisation, with the divergence penalty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import Space
from torch import Tensor, nn

from swath.learn.losses import Weighing, explained_variance, surrogate_loss
from swath.rollout_workers.advantages import Estimator
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.policies.distributions import DistClass
from swath.rollout_workers.policies.settings import scheduled
from swath.rollout_workers.policies.torch import TorchPolicy
from swath.rollout_workers.postprocessing import compute_gae_for_sample_batch


class PPOTorchPolicy(TorchPolicy):
    """Learns by proximal policy optimisation from advantages relative to a critic.

    Attributes:
        kl_coeff: weight of the divergence; `update_kl` moves it.

    Raises:
        AssertionError: `use_gae` without `use_critic`.
        ValueError: a model without values.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: Mapping[str, Any]) -> None:
        super().__init__(observation_space, action_space, config)
        Estimator.of(self.config)  # raises where the settings contradict each other
        self.kl_coeff = float(self.config["kl_coeff"])
        if not self._has_value:
            raise ValueError(
                f"the model of {type(self).__name__} has no values; it must give (dist_inputs, value), or with states "
                "(dist_inputs, value, states)"
            )

    @property
    def estimator(self) -> Estimator:
        """The advantages that the config asks for."""
        return Estimator.of(self.config)

    @property
    def entropy_coeff(self) -> float:
        """Weight of the entropy at `global_timestep`."""
        return scheduled(self.config["entropy_coeff_schedule"], self.config["entropy_coeff"], self.global_timestep)

    def update_kl(self, sampled_kl: float) -> float:
        """Move `kl_coeff` so that divergences of updates come nearer to `kl_target`, and return it.

        Args:
            sampled_kl: the divergence of the last update; its stat `kl`.
        """
        target = self.config["kl_target"]
        if sampled_kl > 2 * target:
            self.kl_coeff *= 1.5
        elif sampled_kl < 0.5 * target:
            self.kl_coeff *= 0.5
        return self.kl_coeff

    def loss(self, model: nn.Module, dist_class: DistClass, train_batch: SampleBatch) -> Tensor:
        """The clipped surrogate loss; see `swath.learn.losses.surrogate_loss`."""
        out, value, _ = self.run_model(model, train_batch)
        now, before = (dist_class(given, model) for given in (out, train_batch[ColumnNames.ACTION_DIST_INPUTS]))
        config, target, mean = self.config, train_batch[ColumnNames.VALUE_TARGETS], self.valid_mean(train_batch)
        critic = value if config["use_critic"] else None
        log_ratio = now.logp(train_batch[ColumnNames.ACTIONS]) - train_batch[ColumnNames.ACTION_LOGP]
        error = None if critic is None else (critic - target).square().clamp(0, config["vf_clip_param"])
        kl_coeff = self.kl_coeff if config["use_kl_loss"] else 0.0
        weighing = Weighing(config["clip_param"], config["vf_loss_coeff"], self.entropy_coeff, kl_coeff)
        advantage, entropy, kl = train_batch[ColumnNames.ADVANTAGES], now.entropy(), before.kl(now)
        loss = surrogate_loss(log_ratio, advantage, error, entropy, weighing, kl, mean)
        self._stats = {
            "total_loss": loss.total.detach(),
            "policy_loss": loss.policy,
            "vf_loss": loss.value,
            "vf_explained_var": 0.0 if critic is None else explained_variance(target, critic, mean),
            "kl": loss.kl,
            "entropy": loss.entropy,
            "entropy_coeff": self.entropy_coeff,
            "cur_kl_coeff": self.kl_coeff,
        }
        return loss.total

    def stats(self, train_batch: SampleBatch) -> dict[str, Any]:  # noqa: ARG002  the signature of every policy
        """The parts of the loss as means, and the weights of the parts."""
        return self._stats

    def postprocess_trajectory(
        self, sample_batch: SampleBatch, other_agent_batches: Any = None, episode: Any = None
    ) -> SampleBatch:
        """Add `values_bootstrapped`, `advantages` and `value_targets`."""
        return compute_gae_for_sample_batch(self, sample_batch, other_agent_batches, episode)

    def get_state(self) -> dict[str, Any]:
        """All that a policy needs to go on elsewhere, `current_kl_coeff` too."""
        return {**super().get_state(), "current_kl_coeff": self.kl_coeff}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave."""
        super().set_state(state)
        self.kl_coeff = state.get("current_kl_coeff", self.kl_coeff)
