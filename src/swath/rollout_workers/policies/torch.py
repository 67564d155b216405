"""The base of policies that learn by gradients in PyTorch.

```
batch ──pad, to device──▶ loss ──▶ gradients ──▶ mean over ranks ──▶ bounded ──▶ optimiser
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from swath.rollout_workers.advantages import Estimator
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.policies import gradients as grads
from swath.rollout_workers.policies import inputs
from swath.rollout_workers.policies.acting import ActingPolicy
from swath.rollout_workers.policies.distributions import DistClass
from swath.rollout_workers.policies.inputs import as_numbers, info_of, to_train_on
from swath.rollout_workers.policies.settings import scheduled
from swath.rollout_workers.policy import states_in

_UNFUSED = {"foreach", "differentiable"}
"""Keywords of Adam that do not go with a fused step, which is much the fastest."""


class TorchPolicy(ActingPolicy):
    """Acts by a network and learns by gradients of a loss; write `loss`, and what else is to be another.

    To override: `make_model`, `loss`, `stats`, `make_optimizer`, `postprocess_trajectory`.

    Args:
        observation_space: of processed observations.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        config: settings; what is missing is as by default.

    Attributes:
        optimizer: what uses the gradients.

    Raises:
        RuntimeError: a GPU is asked for, and there is none.
        TypeError: the model does not give what it must.
        ValueError: an action space that no distribution is for, or a model with another number of outputs.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: Mapping[str, Any]) -> None:
        super().__init__(observation_space, action_space, config)
        self._parameters = list(self.model.parameters())
        self.optimizer = self.make_optimizer()

    @property
    def estimator(self) -> Estimator | None:
        """The advantages that `postprocess_trajectory` adds, if that is all it does: workers add them by fragments."""
        return None

    def make_optimizer(self) -> torch.optim.Optimizer:
        """What uses the gradients: here Adam, with the keywords in the setting `optimizer`."""
        asked = self.config["optimizer"]
        fused = not _UNFUSED & asked.keys()
        return torch.optim.Adam(self.model.parameters(), **{"lr": self.cur_lr, "fused": fused, **asked})

    def loss(self, model: nn.Module, dist_class: DistClass, train_batch: SampleBatch) -> Tensor:
        """What is to become small; a scalar.

        `self.run_model(model, train_batch)` gives the network's outputs, `self.valid_mean(train_batch)` a mean that
        leaves padding out.

        Args:
            model: the network, in training mode.
            dist_class: `dist_class(dist_inputs, model)` has `logp`, `entropy`, `kl`.
            train_batch: tensors on the policy's device; sequences are padded to equal length.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def stats(self, train_batch: SampleBatch) -> dict[str, Any]:  # noqa: ARG002  for those who override it
        """Numbers to tell of the last loss, by name; scalar tensors become numbers."""
        return {}

    def run_model(self, model: nn.Module, batch: Mapping[str, Any]) -> inputs.Outputs:
        """What the network says of the rows of a batch of tensors."""
        seq_lens = batch[ColumnNames.SEQ_LENS] if self._initial_state else None
        return inputs.run(model, batch[ColumnNames.OBS], states_in(batch), seq_lens)

    def valid_mean(self, train_batch: SampleBatch) -> Any:
        """A function that takes the mean of `[n]` over the rows of this batch that are no padding."""
        return inputs.valid_mean(train_batch)

    @property
    def cur_lr(self) -> float:
        """The learning rate at `global_timestep`."""
        return scheduled(self.config["lr_schedule"], self.config["lr"], self.global_timestep)

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        """One update from a batch, which is left as it is; see `compute_gradients` and `apply_gradients`."""
        told: dict[str, Any] = {}

        batch = to_train_on(samples, recurrent=self.is_recurrent())
        if self.callbacks is not None:
            self.callbacks.on_learn_on_batch(policy=self, train_batch=batch, result=told)
        found, stats = self._gradients(batch)
        self._use(found)
        return info_of(batch, stats, told, self.num_grad_updates)

    def compute_gradients(self, postprocessed_batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        """Gradients of the loss on a batch, in `parameters()` order on the CPU, None where none; the weights stay.

        They are averaged over ranks, where there are several, and bounded by `grad_clip`.

        Raises:
            FloatingPointError: one is NaN or infinite.
            WorkerLate: other ranks have not come in time.
        """
        batch = to_train_on(postprocessed_batch, recurrent=self.is_recurrent())
        found, stats = self._gradients(batch)
        on_cpu = [None if gradient is None else gradient.cpu() for gradient in found]
        return on_cpu, info_of(batch, stats, {}, self.num_grad_updates + 1)

    def apply_gradients(self, gradients: Iterable[Any]) -> None:
        """One step of the optimiser by gradients as `compute_gradients` gives them, tensors or arrays.

        Raises:
            ValueError: another number of them, or another shape; nothing is applied.
            FloatingPointError: one is NaN or infinite; nothing is applied.
        """
        self._use(grads.fitted(gradients, self._parameters))

    def check_gradients(self, gradients: Iterable[Any]) -> None:
        """Raise what `apply_gradients` would raise for these gradients."""
        grads.fitted(gradients, self._parameters)

    def get_state(self) -> dict[str, Any]:
        """All that a policy needs to go on elsewhere, the optimiser's state too."""
        return {**super().get_state(), "optimizer": _on_cpu(self.optimizer.state_dict())}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave; without an `optimizer` in it that stays as it is.

        Raises:
            ValueError: weights or optimiser of another network; nothing is applied.
        """
        take_weights_over = inputs.plan_of_weights(self.model, state["weights"])
        if "optimizer" in state:
            self.optimizer.load_state_dict(deepcopy(state["optimizer"]))
        take_weights_over()
        self.global_timestep, self.num_grad_updates = state["global_timestep"], state.get("num_grad_updates", 0)

    def _gradients(self, batch: SampleBatch) -> tuple[grads.Gradients, dict[str, Any]]:
        """Gradients, averaged and bounded, and what is reported of them; the batch becomes tensors."""
        batch.to_device(self.device).set_training()
        self.model.train()
        try:
            own = grads.gradients_of(self.loss(self.model, self.dist_class, batch), self._parameters)
        finally:
            self.model.eval()
        stats = as_numbers(self.stats(batch))
        mean = own if self.distributed_world_size == 1 else grads.averaged(own, self._parameters)
        found, norm = grads.bound(mean, self.config["grad_clip"], self.config["grad_clip_by"])
        return found, {**stats, "cur_lr": self._rate(), "grad_gnorm": norm}

    def _use(self, gradients: grads.Gradients) -> None:
        if self.config["lr_schedule"] is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.cur_lr
        grads.step(self.optimizer, self._parameters, gradients)
        self.num_grad_updates += 1

    def _rate(self) -> float:
        """The learning rate of the next update."""
        return self.cur_lr if self.config["lr_schedule"] is not None else float(self.optimizer.param_groups[0]["lr"])


def _on_cpu(state: Any) -> Any:
    """A copy of an optimiser's state."""
    if isinstance(state, dict):
        return {key: _on_cpu(part) for key, part in state.items()}
    if isinstance(state, list):
        return [_on_cpu(part) for part in state]
    return state.detach().to("cpu", copy=True) if isinstance(state, Tensor) else deepcopy(state)
