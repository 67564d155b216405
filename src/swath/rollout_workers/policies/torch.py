"""The base of policies with a network in PyTorch.

```
acting    obs ──▶ model ──▶ head ──▶ actions, action_logp          one call each, no gradients, no objects per step
                        └──▶ action_dist_inputs, vf_preds
learning  batch ──pad, to device──▶ loss ──▶ gradients ──▶ mean over ranks ──▶ bounded ──▶ optimiser
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from swath.rollout_workers.advantages import Estimator
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.nests import map_nest
from swath.rollout_workers.policies import gradients as grads
from swath.rollout_workers.policies import inputs
from swath.rollout_workers.policies import weights as arrays
from swath.rollout_workers.policies.distributions import DistClass, dist_class_of
from swath.rollout_workers.policies.heads import DiagGaussian, head_for
from swath.rollout_workers.policies.networks import DefaultNetwork
from swath.rollout_workers.policies.normalized import as_answered
from swath.rollout_workers.policies.schedules import scheduled
from swath.rollout_workers.policies.settings import complete, device_of, initial_weights
from swath.rollout_workers.policies.training import as_numbers, info_of, to_train_on
from swath.rollout_workers.policy import Actions, Policy, Weights, states_in
from swath.rollout_workers.policy_views import views

_UNFUSED = {"foreach", "differentiable"}
"""Keywords of Adam that do not go with a fused step, which is much the fastest."""


class TorchPolicy(Policy):
    """Acts by a network and learns by gradients of a loss; write `loss`, and what else is to be another.

    To override: `make_model`, `loss`, `stats`, `make_optimizer`, `postprocess_trajectory`.

    Args:
        observation_space: of processed observations.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        config: settings; what is missing is as by default.

    Attributes:
        model: the network. It is in evaluation mode but for while a loss is computed.
        dist_class: `dist_class(dist_inputs, model)` makes a distribution for this action space.
        num_outputs: width of `dist_inputs`.
        device: of the network.
        optimizer: what uses the gradients.
        estimator: the advantages that `postprocess_trajectory` adds, if that is all it does, so that workers can do it
            for a whole fragment at once; None: nothing is added.

    Raises:
        RuntimeError: a GPU is asked for, and there is none.
        TypeError: the model does not give what it must.
        ValueError: an action space that no distribution is for, or a model with another number of outputs.
    """

    estimator: Estimator | None = None
    looks_at_episodes = False

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: Mapping[str, Any]) -> None:
        super().__init__(observation_space, action_space, complete(config))
        self.view_requirements = views()
        self.device = device_of(self.config)
        self._head = head_for(action_space, normalize=self.config["normalize_actions"]).to(self.device)
        self._dtype = None if isinstance(action_space, spaces.Discrete) else np.dtype(cast("Any", action_space.dtype))
        self.num_outputs, self.dist_class = self._head.inputs, dist_class_of(self._head)
        with initial_weights(self.config):
            self.model = self.make_model().to(self.device).eval()
            initial: Any = getattr(self.model, "get_initial_state", list)
            self._initial_state = [map_nest(inputs.array, part) for part in initial()]
            self._has_value = self._require_fitting_model()
        self._parameters = list(self.model.parameters())
        self.optimizer = self.make_optimizer()

    def make_model(self) -> nn.Module:
        """The network: maps observations `[n, …]` to `dist_inputs` `[n, num_outputs]` or `(dist_inputs, value)`.

        One that remembers has `get_initial_state()`, a list of arrays for one agent; it maps `(obs, states, seq_lens)`
        and gives the new states as the last part of a tuple. `obs` has as many rows for each sequence, of which
        `seq_lens` says how many are no padding.

        Here it is `custom_model`, or what the setting `model` says.

        Raises:
            ValueError: `free_log_std` for actions that have no std.
        """
        model = self.config["model"]
        if model["custom_model"] is not None:
            made: nn.Module = model["custom_model"](self.observation_space, self.action_space, self.num_outputs, model)
            return made
        if model["free_log_std"] and not isinstance(self._head, DiagGaussian):
            raise ValueError(f"model['free_log_std']=True needs a Box of floats, but actions are {self.action_space}")
        return DefaultNetwork(self.observation_space, self.num_outputs, model, with_value=self._wants_value())

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

    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,  # noqa: ARG002  the signature of every policy
        prev_reward_batch: Any = None,  # noqa: ARG002
        info_batch: Any = None,  # noqa: ARG002
        episodes: Sequence[Any] | None = None,  # noqa: ARG002
        explore: bool | None = None,
        timestep: int | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> Actions:
        """Actions, with the columns `action_dist_inputs`, `action_logp` and, of a model with values, `vf_preds`."""
        with torch.inference_mode():
            out, value, states = self._outputs(obs_batch, state_batches)
            head = self._head
            explores = self.config["explore"] if explore is None else explore
            action, log_prob = head.sample(out) if explores else head.mode(out)
            actions = inputs.arrays(action)
            extra = {
                ColumnNames.ACTION_DIST_INPUTS: inputs.arrays(out),
                ColumnNames.ACTION_LOGP: inputs.arrays(log_prob),
            }
            if value is not None:
                extra[ColumnNames.VF_PREDS] = inputs.arrays(value)
        self.global_timestep += len(actions)
        if self._dtype is not None:
            actions = actions.astype(self._dtype, copy=False)
        return actions, [inputs.arrays(part) for part in states], extra

    def compute_values(self, input_dict: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """The values `[n]` of the states in an input: `obs` and, of a model that remembers, `state_in_…`.

        Raises:
            ValueError: the model has no values.
        """
        obs = input_dict[ColumnNames.OBS]
        with torch.inference_mode():
            if isinstance(self.model, DefaultNetwork):
                value: Tensor | None = self.model.value(inputs.on(self.device, obs)) if self._has_value else None
            else:
                value = self._outputs(obs, states_in(input_dict)).value
            if value is None:
                raise ValueError(f"{self!r} has no values: its model must give (dist_inputs, value)")
            found: np.ndarray[Any, Any] = inputs.arrays(value)
            return found

    def compute_log_likelihoods(
        self,
        actions: Any,
        obs_batch: Any,
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,  # noqa: ARG002  the signature of every policy
        prev_reward_batch: Any = None,  # noqa: ARG002
        actions_normalized: bool = True,
    ) -> np.ndarray[Any, Any]:
        """Log-probabilities `[n]` of actions; `actions_normalized=False`: they are as envs get them."""
        if not actions_normalized and self.config["normalize_actions"]:
            actions = as_answered(self.action_space, np.asarray(actions))
        with torch.inference_mode():
            out = self._outputs(obs_batch, state_batches).dist_inputs
            found: np.ndarray[Any, Any] = inputs.arrays(
                self._head.log_prob(out, inputs.on(self.device, np.asarray(actions)))
            )
            return found

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        """One update from a batch, which is left as it is; see `compute_gradients` and `apply_gradients`."""
        batch, told = to_train_on(samples, recurrent=self.is_recurrent()), dict[str, Any]()
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
        """
        batch = to_train_on(postprocessed_batch, recurrent=self.is_recurrent())
        found, stats = self._gradients(batch)
        on_cpu = [None if gradient is None else gradient.cpu() for gradient in found]
        return on_cpu, info_of(batch, stats, {}, self.num_grad_updates + 1)

    def apply_gradients(self, gradients: Iterable[Any]) -> None:
        """One step of the optimiser by gradients as `compute_gradients` gives them, tensors or arrays.

        Raises:
            ValueError: another number of them, or another shape; nothing is applied.
        """
        self._use(grads.fitted(gradients, self._parameters))

    def check_gradients(self, gradients: Iterable[Any]) -> None:
        """Raise `ValueError` for gradients that `apply_gradients` would refuse."""
        grads.fitted(gradients, self._parameters)

    def get_weights(self) -> Weights:
        """Copies of all parameters and persistent buffers by name."""
        return arrays.arrays_of(self.model)

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy arrays or tensors into the model.

        Raises:
            ValueError: names missing or unknown, or other shapes; the message lists them all, nothing is applied.
        """
        arrays.plan(self.model, weights)()

    def get_state(self) -> dict[str, Any]:
        """All that a policy needs to go on elsewhere, the optimiser's state too."""
        return {**super().get_state(), "optimizer": _on_cpu(self.optimizer.state_dict())}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave; without an `optimizer` in it that stays as it is.

        Raises:
            ValueError: weights or optimiser of another network; nothing is applied.
        """
        take_weights_over = arrays.plan(self.model, state["weights"])
        if "optimizer" in state:
            self.optimizer.load_state_dict(deepcopy(state["optimizer"]))
        take_weights_over()
        self.global_timestep, self.num_grad_updates = state["global_timestep"], state.get("num_grad_updates", 0)

    def get_initial_state(self) -> list[Any]:
        """The states at the begin of an episode, arrays of one's own."""
        return deepcopy(self._initial_state)

    def is_recurrent(self) -> bool:
        """Whether the model remembers anything."""
        return bool(self._initial_state)

    def num_state_tensors(self) -> int:
        """How many states it has."""
        return len(self._initial_state)

    def _wants_value(self) -> bool:
        """Whether the default network has values."""
        return True

    def _outputs(self, obs: Any, states: Sequence[Any] | None) -> inputs.Outputs:
        tensors = inputs.on(self.device, obs)
        if not self._initial_state:
            return inputs.run(self.model, tensors, (), None)
        before = [inputs.on(self.device, part) for part in states or ()]
        return inputs.run(
            self.model, tensors, before, torch.ones(inputs.rows_of(obs), dtype=torch.int32, device=self.device)
        )

    def _gradients(self, batch: SampleBatch) -> tuple[grads.Gradients, dict[str, Any]]:
        """Gradients, averaged and bounded, and what is told of them; the batch becomes tensors."""
        batch.to_device(self.device).set_training()
        self.model.train()
        try:
            found = grads.gradients_of(self.loss(self.model, self.dist_class, batch), self._parameters)
        finally:
            self.model.eval()
        if self.distributed_world_size > 1:
            found = grads.averaged(found, self._parameters)
        found, norm = grads.bound(found, self.config["grad_clip"], self.config["grad_clip_by"])
        return found, as_numbers({**self.stats(batch), "cur_lr": self._rate(), "grad_gnorm": norm})

    def _use(self, gradients: grads.Gradients) -> None:
        if self.config["lr_schedule"] is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.cur_lr
        grads.step(self.optimizer, self._parameters, gradients)
        self.num_grad_updates += 1

    def _rate(self) -> float:
        """The learning rate of the next update."""
        return self.cur_lr if self.config["lr_schedule"] is not None else float(self.optimizer.param_groups[0]["lr"])

    def _require_fitting_model(self) -> bool:
        """Try the model on two rows; whether it has values."""
        space = deepcopy(self.observation_space)
        space.seed(0)
        obs, states = (inputs.twice(nest) for nest in (space.sample(), tuple(self._initial_state)))
        with torch.no_grad():
            out, value, _ = self._outputs(obs, states)
        for what, given, wanted in (("dist_inputs", out, [2, self.num_outputs]), ("values", value, [2])):
            if given is not None and list(given.shape) != wanted:
                raise ValueError(
                    f"the model of {type(self).__name__} gives {what} {list(given.shape)} for 2 rows; it must give "
                    f"{wanted}, for actions of {self.action_space}"
                )
        return value is not None


def _on_cpu(state: Any) -> Any:
    """A copy of an optimiser's state."""
    if isinstance(state, dict):
        return {key: _on_cpu(part) for key, part in state.items()}
    if isinstance(state, list):
        return [_on_cpu(part) for part in state]
    return state.detach().to("cpu", copy=True) if isinstance(state, Tensor) else deepcopy(state)
