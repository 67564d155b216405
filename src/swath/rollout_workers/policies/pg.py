"""The plain policy gradient."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from swath.rollout_workers.advantages import Estimator
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.policies.distributions import DistClass
from swath.rollout_workers.policies.torch import TorchPolicy
from swath.rollout_workers.postprocessing import compute_advantages


class PGTorchPolicy(TorchPolicy):
    """Learns by the plain policy gradient: discounted returns, no critic; of the settings it reads `gamma`."""

    has_critic = False

    @property
    def estimator(self) -> Estimator:
        """Discounted returns."""
        return Estimator(self.config["gamma"], use_gae=False, use_critic=False)

    def loss(self, model: nn.Module, dist_class: DistClass, train_batch: SampleBatch) -> Tensor:
        """`-mean(log π · advantages)` (Williams, 1992)."""
        distribution = dist_class(self.run_model(model, train_batch).dist_inputs, model)
        log_prob = distribution.logp(train_batch[ColumnNames.ACTIONS])
        loss: Tensor = -self.valid_mean(train_batch)(log_prob * train_batch[ColumnNames.ADVANTAGES])
        self._loss = loss.detach()
        return loss

    def stats(self, train_batch: SampleBatch) -> dict[str, Any]:  # noqa: ARG002  the signature of every policy
        """`policy_loss`."""
        return {"policy_loss": self._loss}

    def postprocess_trajectory(
        self,
        sample_batch: SampleBatch,
        other_agent_batches: Any = None,  # noqa: ARG002  the signature of every policy
        episode: Any = None,  # noqa: ARG002
    ) -> SampleBatch:
        """Add `advantages`: discounted returns up to the end of the chunk."""
        return compute_advantages(sample_batch, 0.0, self.config["gamma"], use_gae=False, use_critic=False)
