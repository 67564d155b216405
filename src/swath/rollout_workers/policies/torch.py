"""The base of policies that act by a network in PyTorch, and learn by gradients.

```
obs, states ──▶ model ──▶ head ──▶ actions, action_logp         one call each, no gradients, no objects per step
                     └──▶ action_dist_inputs, vf_preds
batch ──pad, to device──▶ loss ──▶ gradients ──▶ mean over ranks ──▶ bounded ──▶ optimiser
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from swath.learn.heads import DiagGaussian
from swath.rollout.seeding import PrivateStreams
from swath.rollout_workers.actions import answer_leaves, as_answered
from swath.rollout_workers.batches.names import ColumnNames, views
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.checks import MODEL_DEFAULTS
from swath.rollout_workers.metrics import LEARNER_STATS
from swath.rollout_workers.nests import as_array, leaves_of, map_nest
from swath.rollout_workers.policies import learning
from swath.rollout_workers.policies.learning import scheduled
from swath.rollout_workers.policies.networks import DefaultNetwork, DistClass, Outputs, dist_class_of, head_for, on, run
from swath.rollout_workers.policy import Actions, Policy, Weights, states_in
from swath.rollout_workers.postprocessing import Estimator
from swath.rollout_workers.preprocessors import mask_reader
from swath.seeds import derive_named

# Keywords of Adam that do not go with a fused step, which is much the fastest.
_UNFUSED = {"foreach", "differentiable"}


class TorchPolicy(Policy):
    """Acts by a network and learns by gradients of a loss; write `loss`, and what else is to be another.

    An observation entry `"action_mask"` at the root of a Dict gives forbidden actions, those with a 0, probability 0;
    for a MultiDiscrete action the masks of its parts stand side by side. A model of your own that reads a mask of
    another form is left to do that itself.

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

    Raises:
        RuntimeError: a GPU is asked for, and there is none.
        TypeError: the model does not give what it must.
        ValueError: an action space that no distribution is for, a mask that has not one entry per choice, or a model
            with another number of outputs.
    """

    looks_at_episodes = False
    has_critic = True  # whether the default network has values

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: Mapping[str, Any]) -> None:
        model = {**MODEL_DEFAULTS, **config.get("model", {})}
        super().__init__(observation_space, action_space, {**AlgorithmConfig().to_dict(), **config, "model": model})
        self.view_requirements = views()
        self.device = device_of(self.config)
        self._head = head_for(action_space, normalize=self.config["normalize_actions"]).to(self.device)
        custom = self.config["model"]["custom_model"] is not None
        self._mask = mask_reader(observation_space, action_space, None if custom else type(self).__name__)
        self._dtype = answer_leaves(action_space, normalize=self.config["normalize_actions"])[0].dtype
        self.num_outputs, self.dist_class = self._head.inputs, dist_class_of(self._head)
        seed, own_id = self.config["seed"], self.config.get("__policy_id", "")
        streams = None if seed is None else PrivateStreams(derive_named(seed, f"weights of {own_id}"), self.device)
        with streams.activate() if streams else nullcontext():  # with a seed, weights depend on it and the id alone
            self.model = self.make_model().to(self.device).eval()
            initial: Any = getattr(self.model, "get_initial_state", list)
            self._initial_state = [map_nest(lambda leaf: np.array(as_array(leaf)), part) for part in initial()]
            self._has_value = self._require_fitting_model()
        self._parameters = list(self.model.parameters())
        self._stats: dict[str, Any] = {}
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
        return DefaultNetwork(self.observation_space, self.num_outputs, model, with_value=self.has_critic)

    @property
    def estimator(self) -> Estimator | None:
        """The advantages that `postprocess_trajectory` adds, if that is all it does: workers add them by fragments."""
        return None

    @property
    def values_later(self) -> bool:
        """Whether values cost a network of their own, which `compute_values` calls for many rows at once."""
        own = type(self).compute_values is TorchPolicy.compute_values
        return own and type(self.model) is DefaultNetwork and self.model.critic is not None

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
        """Numbers to report of the last loss, by name; scalar tensors become numbers."""
        return self._stats

    def run_model(self, model: nn.Module, batch: Mapping[str, Any]) -> Outputs:
        """The network's outputs for the rows of a batch of tensors."""
        seq_lens = batch[ColumnNames.SEQ_LENS] if self._initial_state else None
        return self._allowed(run(model, batch[ColumnNames.OBS], states_in(batch), seq_lens), batch[ColumnNames.OBS])

    def valid_mean(self, train_batch: SampleBatch) -> Any:
        """A function that takes the mean of `[n]` over the rows of this batch that are no padding."""
        if ColumnNames.SEQ_LENS not in train_batch or not train_batch.zero_padded:
            return torch.mean
        seq_lens, stride = train_batch[ColumnNames.SEQ_LENS], train_batch.max_seq_len
        assert stride is not None  # as it is where rows are padded
        valid = torch.arange(stride, device=seq_lens.device) < seq_lens.unsqueeze(-1)
        return lambda values: values[valid.reshape(-1)].mean()

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
        *,
        with_values: bool = True,
        **kwargs: Any,  # noqa: ARG002
    ) -> Actions:
        """Actions, with the columns `action_dist_inputs`, `action_logp` and, of a model with values, `vf_preds`.

        `with_values=False` leaves these out, if `values_later`.
        """
        with torch.inference_mode():
            options = {} if with_values else {"with_values": False}
            out, value, states = self._outputs(obs_batch, state_batches, **options)
            head = self._head
            explores = self.config["explore"] if explore is None else explore
            action, log_prob = head.sample(out) if explores else head.mode(out)
            actions = as_array(action)
            extra = {ColumnNames.ACTION_DIST_INPUTS: as_array(out), ColumnNames.ACTION_LOGP: as_array(log_prob)}
            if value is not None:
                extra[ColumnNames.VF_PREDS] = as_array(value)
        self.global_timestep += len(actions)
        return actions.astype(self._dtype, copy=False), [map_nest(as_array, part) for part in states], extra

    def compute_values(self, input_dict: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """The values `[n]` of the states in an input: `obs` and, of a model that remembers, `state_in_…`.

        Raises:
            ValueError: the model has no values.
        """
        obs = input_dict[ColumnNames.OBS]
        with torch.inference_mode():
            if type(self.model) is DefaultNetwork and self._has_value:
                return as_array(self.model.value(on(self.device, obs)))
            value = self._outputs(obs, states_in(input_dict)).value
            if value is None:
                raise ValueError(f"{self!r} has no values: its model must give (dist_inputs, value)")
            return as_array(value)

    def compute_log_likelihoods(
        self,
        actions: Any,
        obs_batch: Any,
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,  # noqa: ARG002  the signature of every policy
        prev_reward_batch: Any = None,  # noqa: ARG002
        actions_normalized: bool = True,
    ) -> np.ndarray[Any, Any]:
        """Log-probabilities `[n]` of actions.

        Args:
            actions: `[n, …]`.
            obs_batch: processed and filtered observations `[n, …]`.
            state_batches: states `[n, …]`.
            prev_action_batch: actions before `[n, …]`, for those who override this.
            prev_reward_batch: rewards before `[n]`, likewise.
            actions_normalized: the actions are as the policy answers them; False: as envs get them.
        """
        if not actions_normalized and self.config["normalize_actions"]:
            actions = as_answered(self.action_space, np.asarray(actions))
        with torch.inference_mode():
            out = self._outputs(obs_batch, state_batches).dist_inputs
            return as_array(self._head.log_prob(out, on(self.device, np.asarray(actions))))

    @property
    def cur_lr(self) -> float:
        """The learning rate at `global_timestep`."""
        return scheduled(self.config["lr_schedule"], self.config["lr"], self.global_timestep)

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        """One update from a batch, which is left as it is; see `compute_gradients` and `apply_gradients`."""
        reported: dict[str, Any] = {}
        batch = learning.to_train_on(samples, self)
        if self.callbacks is not None:
            self.callbacks.on_learn_on_batch(policy=self, train_batch=batch, result=reported)
        info = self._backward(batch)
        self._step()
        return {**info, "custom_metrics": reported}

    def compute_gradients(self, postprocessed_batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        """Gradients of the loss on a batch, in `parameters()` order on the CPU, None where none; the weights stay.

        They are averaged over ranks, where there are several, and bounded by `grad_clip`.

        Raises:
            FloatingPointError: one is NaN or infinite.
            WorkerLate: other ranks have not come in time.
        """
        info = self._backward(learning.to_train_on(postprocessed_batch, self))
        found = [None if each.grad is None else each.grad.cpu() for each in self._parameters]
        self._drop_gradients()
        return found, info

    def apply_gradients(self, gradients: Iterable[Any]) -> None:
        """One step of the optimiser by gradients as `compute_gradients` gives them, tensors or arrays.

        Raises:
            ValueError: another number of them, or another shape; nothing is applied.
            FloatingPointError: one is NaN or infinite; nothing is applied.
        """
        for parameter, gradient in zip(self._parameters, learning.fitted(gradients, self._parameters), strict=True):
            parameter.grad = gradient
        self._step()

    def check_gradients(self, gradients: Iterable[Any]) -> None:
        """Raise what `apply_gradients` would raise for these gradients."""
        learning.fitted(gradients, self._parameters)

    def get_weights(self) -> Weights:
        """Copies of all parameters and persistent buffers by name, bfloat16 as float32."""
        return {name: np.array(as_array(tensor)) for name, tensor in self.model.state_dict().items()}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy arrays or tensors into the model.

        Raises:
            ValueError: names missing or unknown, or other shapes; the message lists them all, nothing is applied.
        """
        for own, given in learning.fitting(self.model, weights):
            own.copy_(given)

    def get_state(self) -> dict[str, Any]:
        """All that a policy needs to go on elsewhere, the optimiser's state too."""
        state = deepcopy(self.optimizer.state_dict())
        for held in state["state"].values():
            held.update({name: value.cpu() for name, value in held.items() if isinstance(value, Tensor)})
        return {**super().get_state(), "optimizer": state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave; without an `optimizer` in it that stays as it is.

        Raises:
            ValueError: weights or optimiser of another network; nothing is applied.
        """
        learning.fitting(self.model, state["weights"])  # before anything changes
        if "optimizer" in state:
            self.optimizer.load_state_dict(deepcopy(state["optimizer"]))
        super().set_state(state)

    def get_initial_state(self) -> list[Any]:
        """The states at the begin of an episode, arrays of one's own."""
        return deepcopy(self._initial_state)

    def is_recurrent(self) -> bool:
        """Whether the model remembers anything."""
        return bool(self._initial_state)

    def _outputs(self, obs: Any, states: Sequence[Any] | None, **options: Any) -> Outputs:
        """The network's outputs; without gradients."""
        tensors, before = on(self.device, obs), [on(self.device, part) for part in states or ()]
        lengths = None
        if self._initial_state:
            lengths = torch.ones(len(leaves_of(tensors)[0]), dtype=torch.int32, device=self.device)
        return self._allowed(run(self.model, tensors, before, lengths, **options), tensors)

    def _allowed(self, outputs: Outputs, obs: Any) -> Outputs:
        """Make the logits of actions impossible that the mask in the observations forbids."""
        if self._mask is None:
            return outputs
        head, mask = self._head, self._mask(obs)
        assert not isinstance(head, DiagGaussian)
        return outputs._replace(dist_inputs=head.masked(outputs.dist_inputs, mask))

    def _require_fitting_model(self) -> bool:
        """Try the model on two rows; whether it has values."""
        space = deepcopy(self.observation_space)
        space.seed(0)
        obs, states = map_nest(lambda leaf: np.stack([leaf, leaf]), (space.sample(), tuple(self._initial_state)))
        with torch.no_grad():
            out, value, _ = self._outputs(obs, states)
        shapes = [list(part.shape) for part in (out, value) if part is not None]
        wanted = [[2, self.num_outputs], [2]]
        if shapes != wanted[: len(shapes)]:
            raise ValueError(f"the model of {self!r} gives outputs of shapes {shapes} for 2 rows; wanted {wanted}")
        return value is not None

    def _backward(self, batch: SampleBatch) -> dict[str, Any]:
        """Give the parameters gradients, averaged and bounded; what is reported of them. The batch becomes tensors."""
        batch.to_device(self.device).set_training()
        self._drop_gradients()
        self.model.train()
        try:
            torch.autograd.backward(self.loss(self.model, self.dist_class, batch))
        finally:
            self.model.eval()
        stats = {name: _number(value) for name, value in self.stats(batch).items()}
        if self.distributed_world_size > 1:
            learning.average(self._parameters)
        norm = learning.bound(self._parameters, self.config["grad_clip"], self.config["grad_clip_by"])
        own_rate = self.config["lr_schedule"] is None  # then nobody but the optimiser says the rate of this update
        rate = float(self.optimizer.param_groups[0]["lr"]) if own_rate else self.cur_lr
        return {
            LEARNER_STATS: {**stats, "cur_lr": rate, "grad_gnorm": norm},
            "model": {},
            "custom_metrics": {},
            "num_agent_steps_trained": batch.count,
            "num_grad_updates_lifetime": self.num_grad_updates + 1,
            "diff_num_grad_updates_vs_sampler_policy": self.num_grad_updates - (batch.num_grad_updates or 0),
        }

    def _step(self) -> None:
        """One step of the optimiser by the parameters' gradients, which are gone then."""
        if self.config["lr_schedule"] is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.cur_lr
        self.optimizer.step()
        self._drop_gradients()
        self.num_grad_updates += 1

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _number(value: Any) -> Any:
    """A scalar as Python's number, a larger tensor as an array."""
    value = as_array(value) if isinstance(value, Tensor) else value
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.ndim == 0 else value


def device_of(config: Mapping[str, Any]) -> torch.device:
    """Where a worker's policies are.

    Raises:
        RuntimeError: a GPU is asked for, and there is none.
    """
    setting = "num_gpus_per_env_runner" if config.get("worker_index", 0) else "num_gpus"
    gpus = config.get(setting, 0)
    if not gpus or config.get("_fake_gpus", False):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(f"{setting}={gpus!r}, but torch sees no CUDA device here; set it to 0, or _fake_gpus=True")
    return torch.device("cuda", torch.cuda.current_device())
