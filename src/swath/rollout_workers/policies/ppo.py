"""Proximal policy optimisation with the divergence penalty, and the plain policy gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from swath.learn.ppo import clipped_surrogate, explained_variance
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.policies.learning import interpolate
from swath.rollout_workers.policies.networks import DistClass
from swath.rollout_workers.policies.torch import TorchPolicy
from swath.rollout_workers.postprocessing import Estimator, compute_advantages, compute_gae_for_sample_batch


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
            wanted = "(dist_inputs, value), or with states (dist_inputs, value, states)"
            raise ValueError(f"the model of {type(self).__name__} has no values; it must give {wanted}")

    @property
    def estimator(self) -> Estimator:
        """Return the advantages that the config asks for."""
        return Estimator.of(self.config)

    @property
    def entropy_coeff(self) -> float:
        """Return the weight of the entropy at `global_timestep`."""
        return interpolate(self.config["entropy_coeff_schedule"], self.config["entropy_coeff"], self.global_timestep)

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
        """Compute the clipped surrogate loss with a divergence penalty (Schulman et al., 2017, eq. 7 to 9)."""
        out, value, _ = self.run_model(model, train_batch)
        now, before = dist_class(out, model), dist_class(train_batch[ColumnNames.ACTION_DIST_INPUTS], model)
        config, target, mean = self.config, train_batch[ColumnNames.VALUE_TARGETS], self.valid_mean(train_batch)
        log_ratio = now.logp(train_batch[ColumnNames.ACTIONS]) - train_batch[ColumnNames.ACTION_LOGP]
        policy_loss = mean(clipped_surrogate(log_ratio, train_batch[ColumnNames.ADVANTAGES], config["clip_param"]))
        entropy, kl = mean(now.entropy()), mean(before.kl(now))
        value_loss = explained = torch.zeros_like(entropy)
        if config["use_critic"] and value is not None:
            value_loss = mean((value - target).square().clamp(0, config["vf_clip_param"]))
            explained = explained_variance(target, value, mean)
        loss: Tensor = policy_loss + config["vf_loss_coeff"] * value_loss - self.entropy_coeff * entropy
        if config["use_kl_loss"]:
            loss = loss + self.kl_coeff * kl
        parts = {"policy_loss": policy_loss, "vf_loss": value_loss, "vf_explained_var": explained, "kl": kl}
        parts |= {"total_loss": loss, "entropy": entropy}
        self._stats = {name: part.detach() for name, part in parts.items()}
        self._stats |= {"entropy_coeff": self.entropy_coeff, "cur_kl_coeff": self.kl_coeff}
        return loss

    def postprocess_trajectory(self, sample_batch: SampleBatch, *_: Any, **__: Any) -> SampleBatch:
        """Add `values_bootstrapped`, `advantages` and `value_targets`."""
        return compute_gae_for_sample_batch(self, sample_batch)

    def get_state(self) -> dict[str, Any]:
        """Return the state from which another policy can continue, with `current_kl_coeff`."""
        return {**super().get_state(), "current_kl_coeff": self.kl_coeff}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        super().set_state(state)
        self.kl_coeff = state.get("current_kl_coeff", self.kl_coeff)


class PGTorchPolicy(TorchPolicy):
    """Learns by the plain policy gradient: discounted returns, no critic; of the settings it reads `gamma`."""

    has_critic = False

    @property
    def estimator(self) -> Estimator:
        """Return discounted returns."""
        return Estimator(self.config["gamma"], use_gae=False, use_critic=False)

    def loss(self, model: nn.Module, dist_class: DistClass, train_batch: SampleBatch) -> Tensor:
        """Compute `-mean(log π · advantages)` (Williams, 1992)."""
        distribution = dist_class(self.run_model(model, train_batch).dist_inputs, model)
        log_prob = distribution.logp(train_batch[ColumnNames.ACTIONS])
        loss: Tensor = -self.valid_mean(train_batch)(log_prob * train_batch[ColumnNames.ADVANTAGES])
        self._stats = {"policy_loss": loss.detach()}
        return loss

    def postprocess_trajectory(self, sample_batch: SampleBatch, *_: Any, **__: Any) -> SampleBatch:
        """Add `advantages`: discounted returns up to the end of the chunk."""
        return compute_advantages(sample_batch, 0.0, self.config["gamma"], use_gae=False, use_critic=False)
