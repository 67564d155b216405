"""Policies that act by a network in PyTorch and learn by gradients: their base, PPO and the plain policy gradient.

```
obs, states ──▶ model ──▶ head ──▶ actions, action_logp         one call each, no gradients, no objects per step
                     └──▶ action_dist_inputs, vf_preds
batch ──pad, to device──▶ loss ──▶ gradients ──▶ mean over ranks ──▶ clipped ──▶ optimiser
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from swath.learn.heads import DiagGaussian, mask_logits
from swath.learn.ppo import clipped_surrogate, explained_variance
from swath.rollout.seeding import PrivateStreams
from swath.rollout_workers.batches.names import ColumnNames, optional_views
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.checks import MODEL_DEFAULTS
from swath.rollout_workers.metrics import LEARNER_STATS
from swath.rollout_workers.nests import as_array, leaves_of, map_nest
from swath.rollout_workers.policies import learning, networks
from swath.rollout_workers.policies.networks import DefaultNetwork, DistClass, Outputs
from swath.rollout_workers.policy import Actions, Policy, Weights, states_in
from swath.rollout_workers.postprocessing import Estimator, compute_advantages, compute_gae_for_sample_batch
from swath.rollout_workers.processing import answer_leaves, mask_reader, unscale_actions
from swath.seeds import derive_named

# Keywords of Adam that do not go with a fused step, which is much the fastest.
_UNFUSED = {"foreach", "differentiable"}


class TorchPolicy(Policy):
    """Acts by a network and learns by gradients of a loss; derive from it and write at least `loss`.

    An observation entry `"action_mask"` at the root of a Dict forbids the actions whose entry is 0; for a MultiDiscrete
    action the masks of its parts are concatenated. A mask of another form needs a custom model.

    To override: `make_model`, `loss`, `stats`, `make_optimizer`, `postprocess_trajectory`.

    Args:
        observation_space: of processed observations.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        config: settings; missing ones have their defaults.

    Attributes:
        model: the network, in evaluation mode except while a loss is computed.
        dist_class: `dist_class(dist_inputs, model)` makes a distribution for this action space.
        num_outputs: width of `dist_inputs`.
        device: of the network.
        optimizer: of the network's parameters.

    Raises:
        RuntimeError: a GPU is required, and there is none.
        TypeError: the model's output has another form.
        ValueError: an action space without a distribution, a mask without one entry per choice, or a model with another
            number of outputs.
    """

    looks_at_episodes = False
    has_critic = True  # whether the default network has values

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: Mapping[str, Any]) -> None:
        model = {**MODEL_DEFAULTS, **config.get("model", {})}
        super().__init__(observation_space, action_space, {**AlgorithmConfig().to_dict(), **config, "model": model})
        self.view_requirements = optional_views()
        self.device = device_of(self.config)
        self._head = networks.head_for(action_space, normalize=self.config["normalize_actions"]).to(self.device)
        custom = self.config["model"]["custom_model"] is not None
        self._mask = mask_reader(observation_space, action_space, None if custom else type(self).__name__)
        self._dtype = answer_leaves(action_space, normalize=self.config["normalize_actions"])[0].dtype
        self.num_outputs, self.dist_class = self._head.inputs, networks.dist_class_of(self._head)
        seed, policy_id = self.config["seed"], self.config.get("__policy_id", "")
        streams = None if seed is None else PrivateStreams(derive_named(seed, f"weights of {policy_id}"), self.device)
        with streams.activate() if streams else nullcontext():  # with a seed, weights depend on seed and id alone
            self.model = self.make_model().to(self.device).eval()
            initial: Any = getattr(self.model, "get_initial_state", list)
            self._initial_state = [map_nest(lambda leaf: np.array(as_array(leaf)), part) for part in initial()]
            self._has_value = self._require_fitting_model()
        self._parameters = list(self.model.parameters())
        self._stats: dict[str, Any] = {}
        self.optimizer = self.make_optimizer()

    def make_model(self) -> nn.Module:
        """Build the network: observations `[n, …]` to `dist_inputs` `[n, num_outputs]` or `(dist_inputs, value)`.

        A recurrent one has `get_initial_state()`, a list of arrays for one agent; it maps `(obs, states, seq_lens)`
        and returns the new states as the last part of a tuple. `obs` has the same number of rows for each sequence, of
        which `seq_lens` are no padding.

        Here it is `custom_model`, or the default network by the setting `model`.

        Raises:
            ValueError: `free_log_std` for actions that have no std.
        """
        model = self.config["model"]
        if model["custom_model"] is not None:
            build: Callable[..., nn.Module] = model["custom_model"]
            return build(self.observation_space, self.action_space, self.num_outputs, model)
        if model["free_log_std"] and not isinstance(self._head, DiagGaussian):
            raise ValueError(f"model['free_log_std']=True needs a Box of floats, but actions are {self.action_space}")
        return DefaultNetwork(self.observation_space, self.num_outputs, model, with_value=self.has_critic)

    @property
    def estimator(self) -> Estimator | None:
        """Return the advantages that `postprocess_trajectory` adds, if it does nothing else."""
        return None

    @property
    def values_later(self) -> bool:
        """Return whether the critic is a separate network, which `compute_values` calls for many rows at once."""
        is_overridden = type(self).compute_values is not TorchPolicy.compute_values
        return not is_overridden and type(self.model) is DefaultNetwork and self.model.critic is not None

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Build the optimiser: here Adam, with the keywords in the setting `optimizer`."""
        keywords = self.config["optimizer"]
        fused = not _UNFUSED & keywords.keys()
        return torch.optim.Adam(self.model.parameters(), **{"lr": self.cur_lr, "fused": fused, **keywords})

    def loss(self, model: nn.Module, dist_class: DistClass, train_batch: SampleBatch) -> Tensor:
        """Compute the loss to minimise, a scalar.

        `self.run_model(model, train_batch)` gives the network's outputs, `self.valid_mean(train_batch)` a mean that
        leaves padding out.

        Args:
            model: the network, in training mode.
            dist_class: `dist_class(dist_inputs, model)` has `logp`, `entropy`, `kl`.
            train_batch: tensors on the policy's device; sequences are padded to equal length.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def stats(self, train_batch: SampleBatch) -> dict[str, Any]:  # noqa: ARG002  for overrides
        """Return numbers to report of the last loss, by name; scalar tensors become numbers."""
        return self._stats

    def run_model(self, model: nn.Module, batch: Mapping[str, Any]) -> Outputs:
        """Run the network on the rows of a batch of tensors."""
        obs, seq_lens = batch[ColumnNames.OBS], batch[ColumnNames.SEQ_LENS] if self._initial_state else None
        return self._mask_outputs(networks.call_model(model, obs, states_in(batch), seq_lens), obs)

    def valid_mean(self, train_batch: SampleBatch) -> Any:
        """Return a function that takes the mean of `[n]` over the rows of this batch that are no padding."""
        if ColumnNames.SEQ_LENS not in train_batch or not train_batch.zero_padded:
            return torch.mean
        seq_lens, stride = train_batch[ColumnNames.SEQ_LENS], train_batch.max_seq_len
        assert stride is not None  # rows are padded
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
        """Compute actions, and the columns `action_dist_inputs`, `action_logp` and, of a model with values, `vf_preds`.

        `with_values=False` leaves these out, if `values_later`.
        """
        with torch.inference_mode():
            options = {} if with_values else {"with_values": False}
            dist_inputs, value, states = self._outputs(obs_batch, state_batches, **options)
            head = self._head
            explores = self.config["explore"] if explore is None else explore
            action, log_prob = head.sample(dist_inputs) if explores else head.mode(dist_inputs)
            actions = as_array(action)
            extra = {ColumnNames.ACTION_DIST_INPUTS: as_array(dist_inputs), ColumnNames.ACTION_LOGP: as_array(log_prob)}
            if value is not None:
                extra[ColumnNames.VF_PREDS] = as_array(value)
        self.global_timestep += len(actions)
        arrays = [map_nest(as_array, part) for part in states] if states else []
        return actions.astype(self._dtype, copy=False), arrays, extra

    def compute_values(self, input_dict: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Compute the values `[n]` of the states in an input: `obs` and, of a recurrent model, `state_in_…`.

        Raises:
            ValueError: the model has no values.
        """
        obs = input_dict[ColumnNames.OBS]
        with torch.inference_mode():
            if type(self.model) is DefaultNetwork and self._has_value:
                return as_array(self.model.value(networks.to_device(self.device, obs)))
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
        """Compute log-probabilities `[n]` of actions.

        Args:
            actions: `[n, …]`.
            obs_batch: processed and filtered observations `[n, …]`.
            state_batches: states `[n, …]`.
            prev_action_batch: actions before `[n, …]`, for overrides of this method.
            prev_reward_batch: rewards before `[n]`, for overrides of this method.
            actions_normalized: the actions are as the policy answers them; False: as envs get them.
        """
        if not actions_normalized and self.config["normalize_actions"]:
            actions = unscale_actions(self.action_space, np.asarray(actions))
        with torch.inference_mode():
            dist_inputs = self._outputs(obs_batch, state_batches).dist_inputs
            return as_array(self._head.log_prob(dist_inputs, networks.to_device(self.device, np.asarray(actions))))

    @property
    def cur_lr(self) -> float:
        """Return the learning rate at `global_timestep`."""
        return learning.interpolate(self.config["lr_schedule"], self.config["lr"], self.global_timestep)

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        """Update the weights from a batch, which stays unchanged; see `compute_gradients` and `apply_gradients`."""
        result: dict[str, Any] = {}
        batch = learning.training_batch(samples, self)
        if self.callbacks is not None:
            self.callbacks.on_learn_on_batch(policy=self, train_batch=batch, result=result)
        info = self._backward(batch)
        self._step()
        return {**info, "custom_metrics": result}

    def compute_gradients(self, postprocessed_batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        """Compute gradients of the loss, in `parameters()` order on the CPU, None where there is none.

        They are averaged over ranks, if there are several, and clipped by `grad_clip`; the weights stay unchanged.

        Raises:
            FloatingPointError: one is NaN or infinite.
            WorkerLate: other ranks have not come in time.
        """
        info = self._backward(learning.training_batch(postprocessed_batch, self))
        gradients = [None if p.grad is None else p.grad.cpu() for p in self._parameters]
        self.model.zero_grad()
        return gradients, info

    def apply_gradients(self, gradients: Iterable[Any]) -> None:
        """Make one step of the optimiser by gradients of `compute_gradients`, tensors or arrays.

        Raises:
            ValueError: another number of them, or another shape; nothing is applied.
            FloatingPointError: one is NaN or infinite; nothing is applied.
        """
        fitted = learning.fit_gradients(gradients, self._parameters)
        for parameter, gradient in zip(self._parameters, fitted, strict=True):
            parameter.grad = gradient
        self._step()

    def check_gradients(self, gradients: Iterable[Any]) -> None:
        """Raise what `apply_gradients` would raise for these gradients."""
        learning.fit_gradients(gradients, self._parameters)

    def get_weights(self) -> Weights:
        """Return copies of all parameters and persistent buffers by name, bfloat16 as float32."""
        return {name: np.array(as_array(tensor)) for name, tensor in self.model.state_dict().items()}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy arrays or tensors into the model.

        Raises:
            ValueError: names missing or unknown, or other shapes; the message lists them all, nothing is applied.
        """
        for target, source in learning.match_weights(self.model, weights):
            target.copy_(source)

    def get_state(self) -> dict[str, Any]:
        """Return the state from which another policy can continue, with the optimiser's state."""
        state = deepcopy(self.optimizer.state_dict())
        for moments in state["state"].values():
            moments.update({name: value.cpu() for name, value in moments.items() if isinstance(value, Tensor)})
        return {**super().get_state(), "optimizer": state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; without an `optimizer` in it the optimiser stays unchanged.

        Raises:
            ValueError: weights or optimiser of another network; nothing is applied.
        """
        learning.match_weights(self.model, state["weights"])  # before anything changes
        if "optimizer" in state:
            self.optimizer.load_state_dict(deepcopy(state["optimizer"]))
        super().set_state(state)

    def get_initial_state(self) -> list[Any]:
        """Return the states at the start of an episode, as new arrays."""
        return deepcopy(self._initial_state)

    def is_recurrent(self) -> bool:
        """Return whether the model has states."""
        return bool(self._initial_state)

    def _outputs(self, obs: Any, states: Sequence[Any] | None, **options: Any) -> Outputs:
        """Run the network on observations, without gradients."""
        tensors = networks.to_device(self.device, obs)
        old_states = [networks.to_device(self.device, part) for part in states] if states else []
        lengths = None
        if self._initial_state:
            lengths = torch.ones(len(leaves_of(tensors)[0]), dtype=torch.int32, device=self.device)
        outputs = networks.call_model(self.model, tensors, old_states, lengths, **options)
        return outputs if self._mask is None else self._mask_outputs(outputs, tensors)

    def _mask_outputs(self, outputs: Outputs, obs: Any) -> Outputs:
        """Set the logits of forbidden actions by the mask in the observations, if there is one."""
        if self._mask is None:
            return outputs
        head, mask = self._head, self._mask(obs)
        assert not isinstance(head, DiagGaussian)
        return outputs._replace(dist_inputs=mask_logits(outputs.dist_inputs, mask, head.counts))

    def _require_fitting_model(self) -> bool:
        """Run the model on two rows to check it; return whether it has values."""
        space = deepcopy(self.observation_space)
        space.seed(0)
        obs, states = map_nest(lambda leaf: np.stack([leaf, leaf]), (space.sample(), tuple(self._initial_state)))
        with torch.no_grad():
            dist_inputs, value, _ = self._outputs(obs, states)
        shapes = [list(part.shape) for part in (dist_inputs, value) if part is not None]
        expected = [[2, self.num_outputs], [2]]
        if shapes != expected[: len(shapes)]:
            raise ValueError(f"the model of {self!r} gives outputs of shapes {shapes} for 2 rows; wanted {expected}")
        return value is not None

    def _backward(self, batch: SampleBatch) -> dict[str, Any]:
        """Compute gradients of the parameters, averaged and clipped; return the info. The batch becomes tensors."""
        batch.to_device(self.device).set_training()
        self.model.zero_grad()
        self.model.train()
        try:
            torch.autograd.backward(self.loss(self.model, self.dist_class, batch))
        finally:
            self.model.eval()
        stats = {name: _to_number(value) for name, value in self.stats(batch).items()}
        if self.distributed_world_size > 1:
            learning.average_gradients(self._parameters)
        norm = learning.clip_gradients(self._parameters, self.config["grad_clip"], self.config["grad_clip_by"])
        has_schedule = self.config["lr_schedule"] is not None
        rate = self.cur_lr if has_schedule else float(self.optimizer.param_groups[0]["lr"])
        return {
            LEARNER_STATS: {**stats, "cur_lr": rate, "grad_gnorm": norm},
            "model": {},
            "custom_metrics": {},
            "num_agent_steps_trained": batch.count,
            "num_grad_updates_lifetime": self.num_grad_updates + 1,
            "diff_num_grad_updates_vs_sampler_policy": self.num_grad_updates - (batch.num_grad_updates or 0),
        }

    def _step(self) -> None:
        """Make one step of the optimiser by the gradients of the parameters, and clear the gradients."""
        if self.config["lr_schedule"] is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.cur_lr
        self.optimizer.step()
        self.model.zero_grad()
        self.num_grad_updates += 1


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
            expected = "(dist_inputs, value), or with states (dist_inputs, value, states)"
            raise ValueError(f"the model of {type(self).__name__} has no values; it must give {expected}")

    @property
    def estimator(self) -> Estimator:
        """Return the advantages that the config asks for."""
        return Estimator.of(self.config)

    @property
    def entropy_coeff(self) -> float:
        """Return the weight of the entropy at `global_timestep`."""
        config = self.config
        return learning.interpolate(config["entropy_coeff_schedule"], config["entropy_coeff"], self.global_timestep)

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
        inputs, value, _ = self.run_model(model, train_batch)
        new, old = dist_class(inputs, model), dist_class(train_batch[ColumnNames.ACTION_DIST_INPUTS], model)
        config, target, mean = self.config, train_batch[ColumnNames.VALUE_TARGETS], self.valid_mean(train_batch)
        log_ratio = new.logp(train_batch[ColumnNames.ACTIONS]) - train_batch[ColumnNames.ACTION_LOGP]
        policy_loss = mean(clipped_surrogate(log_ratio, train_batch[ColumnNames.ADVANTAGES], config["clip_param"]))
        entropy, kl = mean(new.entropy()), mean(old.kl(new))
        value_loss = explained_var = torch.zeros_like(entropy)
        if config["use_critic"] and value is not None:
            value_loss = mean((value - target).square().clamp(0, config["vf_clip_param"]))
            explained_var = explained_variance(target, value, mean)
        loss: Tensor = policy_loss + config["vf_loss_coeff"] * value_loss - self.entropy_coeff * entropy
        if config["use_kl_loss"]:
            loss = loss + self.kl_coeff * kl
        parts = {"policy_loss": policy_loss, "vf_loss": value_loss, "vf_explained_var": explained_var, "kl": kl}
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
    """Learns by the plain policy gradient from discounted returns, without a critic; reads the setting `gamma`."""

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


def _to_number(value: Any) -> Any:
    """Return a scalar as a Python number, a larger tensor as an array."""
    value = as_array(value) if isinstance(value, Tensor) else value
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.ndim == 0 else value


def device_of(config: Mapping[str, Any]) -> torch.device:
    """Return the device of a worker's policies.

    Raises:
        RuntimeError: a GPU is required, and there is none.
    """
    setting = "num_gpus_per_env_runner" if config.get("worker_index", 0) else "num_gpus"
    gpus = config.get(setting, 0)
    if not gpus or config.get("_fake_gpus", False):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(f"{setting}={gpus!r}, but torch sees no CUDA device here; set it to 0, or _fake_gpus=True")
    return torch.device("cuda", torch.cuda.current_device())
