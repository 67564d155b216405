"""Policies that act by a network in PyTorch.

```
obs, states ──▶ model ──▶ head ──▶ actions, action_logp         one call each, no gradients, no objects per step
                     └──▶ action_dist_inputs, vf_preds
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from swath.rollout_workers.actions import as_answered
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.nests import map_nest
from swath.rollout_workers.policies import inputs
from swath.rollout_workers.policies.distributions import DiagGaussian, dist_class_of, head_for
from swath.rollout_workers.policies.networks import DefaultNetwork
from swath.rollout_workers.policies.settings import complete, device_of, initial_weights
from swath.rollout_workers.policy import Actions, Policy, Weights, states_in
from swath.rollout_workers.policy_views import views


class ActingPolicy(Policy):
    """Acts by a network; the part of a `TorchPolicy` that does not learn.

    Args:
        observation_space: of processed observations.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box.
        config: settings; what is missing is as by default.

    Attributes:
        model: the network. It is in evaluation mode but for while a loss is computed.
        dist_class: `dist_class(dist_inputs, model)` makes a distribution for this action space.
        num_outputs: width of `dist_inputs`.
        device: of the network.
    """

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
            value: Tensor | None
            if type(self.model) is DefaultNetwork and self._has_value:
                value = self.model.value(inputs.on(self.device, obs), quick=True)
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

    def get_weights(self) -> Weights:
        """Copies of all parameters and persistent buffers by name."""
        return inputs.weights_of(self.model)

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy arrays or tensors into the model.

        Raises:
            ValueError: names missing or unknown, or other shapes; the message lists them all, nothing is applied.
        """
        inputs.plan_of_weights(self.model, weights)()

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
        """What the network says; without gradients."""
        tensors = inputs.on(self.device, obs)
        if type(self.model) is DefaultNetwork:
            return inputs.run(partial(self.model, quick=True), tensors, (), None)
        if not self._initial_state:
            return inputs.run(self.model, tensors, (), None)
        before = [inputs.on(self.device, part) for part in states or ()]
        return inputs.run(
            self.model, tensors, before, torch.ones(inputs.rows_of(obs), dtype=torch.int32, device=self.device)
        )

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
