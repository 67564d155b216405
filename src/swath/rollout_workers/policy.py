"""The base class of policies with its defaults, and a policy that acts at random."""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
import torch
from gymnasium import Space, spaces

from swath.rollout.random_policy import RandomPolicy as Uniform
from swath.rollout.spaces import build_value
from swath.rollout_workers.batches.names import BEFORE, STATE_IN, ColumnNames, ViewRequirement, optional_views
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.callbacks import DefaultCallbacks
from swath.rollout_workers.config.policy_spec import PolicySpec, copy_nested
from swath.rollout_workers.nests import leaves_of, map_nest
from swath.rollout_workers.processing import mask_reader

P = ParamSpec("P")
T = TypeVar("T")

# Actions `[n, …]` (or a list of n), states `[n, …]`, and columns `[n, …]` for the batch by name.
Actions = tuple[Any, list[Any], dict[str, Any]]

# Optional columns, by the arguments of `compute_actions`.
OPTIONAL_ARGUMENTS = {
    "prev_action_batch": ColumnNames.PREV_ACTIONS,
    "prev_reward_batch": ColumnNames.PREV_REWARDS,
    "info_batch": ColumnNames.INFOS,
}

# Arrays by name.
Weights = dict[str, np.ndarray[Any, Any]]


class Policy(ABC):
    """Chooses actions for the agents that map to it; derive from it and write `compute_actions`.

    Args:
        observation_space: of processed observations.
        action_space: of its agents.
        config: the settings, with `worker_index`, `num_workers` and `__policy_id`.

    Attributes:
        view_requirements: which optional columns it reads, see `swath.rollout_workers.batches.names`.
        global_timestep: steps sampled for it by all workers, as far as the worker knows.
        num_grad_updates: how often its weights were updated by gradients.
        distributed_world_size: how many ranks average their gradients.
        callbacks: have `on_learn_on_batch`; set by the worker.
        looks_at_episodes: whether it reads the argument `episodes`; False spares the worker to make them.
        values_later: whether a worker calls `compute_actions` `with_values=False`, and later `compute_values` for the
            `vf_preds` of many rows at once.
        acts_in_space: whether envs get its actions unchanged, whatever `normalize_actions` says.

    A class that overrides `compute_actions` gets the defaults of the last three here, unless its body sets them.
    """

    looks_at_episodes = True
    acts_in_space = False
    values_later: Any = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if {"compute_actions", "compute_actions_from_input_dict"} & vars(cls).keys():
            for name in {"looks_at_episodes", "acts_in_space", "values_later"} - vars(cls).keys():
                setattr(cls, name, getattr(Policy, name))

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: Mapping[str, Any]) -> None:
        self.observation_space, self.action_space, self.config = observation_space, action_space, dict(config)
        self.view_requirements: dict[str, ViewRequirement] = optional_views(*BEFORE)
        self.global_timestep = self.num_grad_updates = 0
        self.distributed_world_size = 1
        self.callbacks: DefaultCallbacks | None = None

    def __repr__(self) -> str:
        name = self.config.get("__policy_id")
        name_text = "" if name is None else f" {name!r}"
        return f"<{type(self).__name__}{name_text}: {self.num_grad_updates} updates, at step {self.global_timestep}>"

    @abstractmethod
    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Sequence[Any] | None = None,
        explore: bool | None = None,
        timestep: int | None = None,
        **kwargs: Any,
    ) -> Actions:
        """Compute actions for n rows.

        Args:
            obs_batch: processed and filtered observations `[n, …]`.
            state_batches: states `[n, …]`, as `get_initial_state` has them.
            prev_action_batch: actions before `[n, …]`, if `view_requirements` want them.
            prev_reward_batch: rewards before `[n]`, if `view_requirements` want them.
            info_batch: the infos that came with the observations, if `view_requirements` want them.
            episodes: one `Episode` per row.
            explore: draw actions, or take the best ones; None: as `config["explore"]` says.
            timestep: the global one.
            kwargs: may grow.

        Returns:
            Actions `[n, …]` or a list of n, the new states, and more columns for the batch by name.
        """

    def compute_actions_from_input_dict(
        self,
        input_dict: Mapping[str, Any],
        explore: bool | None = None,
        timestep: int | None = None,
        episodes: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Actions:
        """Compute actions for rows given as columns by name, by a call of `compute_actions`."""
        options = {"explore": explore, "timestep": timestep, "episodes": episodes, **kwargs}
        options |= {argument: input_dict.get(name) for argument, name in OPTIONAL_ARGUMENTS.items()}
        return self.compute_actions(input_dict[ColumnNames.OBS], states_in(input_dict), **options)

    def compute_single_action(
        self,
        obs: Any = None,
        state: Sequence[Any] | None = None,
        *,
        prev_action: Any = None,
        prev_reward: Any = None,
        info: Any = None,
        input_dict: Mapping[str, Any] | None = None,
        episode: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
    ) -> Actions:
        """Compute one action, its states and its extras, without a batch dimension.

        Args:
            obs: one processed and filtered observation.
            state: its states.
            prev_action: the action before.
            prev_reward: the reward before.
            info: what came with the observation.
            input_dict: all arguments above by column's name, in their place.
            episode: the observation's.
            explore: as in `compute_actions`.
            timestep: as in `compute_actions`.

        Raises:
            ValueError: neither `obs` nor `input_dict`.
        """
        if input_dict is None:
            names = ColumnNames.OBS, ColumnNames.INFOS, *BEFORE
            columns = dict(zip(names, (obs, info, prev_action, prev_reward), strict=True))
            columns |= {f"{STATE_IN}{i}": part for i, part in enumerate(state or ())}
            input_dict = {name: value for name, value in columns.items() if value is not None}
        if ColumnNames.OBS not in input_dict:
            raise ValueError("compute_single_action() needs obs or input_dict")
        rows = {name: [value] if name == ColumnNames.INFOS else _as_rows(value) for name, value in input_dict.items()}
        episodes = None if episode is None else [episode]
        actions, states_out, extra = self.compute_actions_from_input_dict(rows, explore, timestep, episodes)
        return _first(actions), [_first(part) for part in states_out], {name: _first(extra[name]) for name in extra}

    def compute_log_likelihoods(self, *args: Any, **kwargs: Any) -> Any:
        """Return log-probabilities `[n]` of actions; see `TorchPolicy.compute_log_likelihoods` for the arguments."""
        raise NotImplementedError(f"{type(self).__name__} has no compute_log_likelihoods")

    def postprocess_trajectory(
        self, sample_batch: SampleBatch, other_agent_batches: Any = None, episode: Any = None
    ) -> SampleBatch:
        """Post-process a chunk of one agent's trajectory: return the batch, changed or new; here it is unchanged.

        Workers call it once per chunk, and only if it is overridden.

        Args:
            sample_batch: consecutive rows of one agent in one episode.
            other_agent_batches: `(policy id, policy, rows)` of the other agents by their ids.
            episode: the episode.
        """
        del other_agent_batches, episode  # for overrides
        return sample_batch

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        """Update the weights from a batch: `compute_gradients`, then `apply_gradients`.

        Returns:
            Info with the `learner_stats`.
        """
        gradients, info = self.compute_gradients(samples)
        self.apply_gradients(gradients)
        return info

    def compute_gradients(self, postprocessed_batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        """Compute gradients of the loss on a batch, and info; the weights stay unchanged."""
        raise NotImplementedError(f"{type(self).__name__} has neither learn_on_batch nor compute_gradients")

    def apply_gradients(self, gradients: Any) -> None:
        """Update the weights by gradients of `compute_gradients`."""
        raise NotImplementedError(f"{type(self).__name__} has no apply_gradients")

    def check_gradients(self, gradients: Any) -> None:  # noqa: B027  nothing to object to
        """Raise what `apply_gradients` would raise for gradients that do not fit, and apply nothing.

        A worker checks the gradients of all policies before it applies any; by default none are refused.
        """

    def get_weights(self) -> Weights:
        """Return copies of all weights by name."""
        return {}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy weights into the policy."""
        if weights:
            raise NotImplementedError(f"{type(self).__name__} has no weights, but got {sorted(weights)}; give none")

    def get_state(self) -> dict[str, Any]:
        """Return the state from which another policy can continue; it shares nothing with this one."""
        spec = PolicySpec(type(self), self.observation_space, self.action_space, copy_nested(self.config))
        return {
            "weights": self.get_weights(),
            "global_timestep": self.global_timestep,
            "num_grad_updates": self.num_grad_updates,
            "policy_spec": spec.serialize(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.set_weights(state["weights"])
        self.global_timestep, self.num_grad_updates = state["global_timestep"], state.get("num_grad_updates", 0)

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Policy:
        """Build a new policy from a state of `get_state`.

        Raises:
            ValueError: its class cannot be imported.
        """
        spec = PolicySpec.deserialize(state["policy_spec"])
        assert spec.policy_class is not None
        policy: Policy = spec.policy_class(spec.observation_space, spec.action_space, copy_nested(spec.config))
        policy.set_state(state)
        return policy

    def get_initial_state(self) -> list[Any]:
        """Return the states of an agent at the start of an episode, not batched; empty if the policy has no memory."""
        return []

    def is_recurrent(self) -> bool:
        """Return whether the policy has states."""
        return False

    def num_state_tensors(self) -> int:
        """Return the number of states."""
        return len(self.get_initial_state())

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        """Take the `timestep` of all workers and, if given, the `num_grad_updates`."""
        self.global_timestep = int(global_vars["timestep"])
        updates = global_vars.get("num_grad_updates")
        if updates is not None:
            self.num_grad_updates = int(updates)

    def apply(self, func: Callable[Concatenate[Self, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `func(self, …)`."""
        return func(self, *args, **kwargs)

    def get_host(self) -> str:
        """Return the name of the machine."""
        return platform.node()

    def get_session(self) -> None:
        """Return None: there are no TensorFlow sessions."""
        return None  # noqa: RET501  an empty method would look as if it were to be written

    def get_connector_metrics(self) -> None:
        """Raise `NotImplementedError`: there are no connectors."""
        raise NotImplementedError("there are no connectors; worker.get_metrics() has the times of steps in perf_stats")


def states_in(columns: Mapping[str, Any]) -> list[Any]:
    """Return the states among columns, in their order."""
    states: list[Any] = []
    while (name := f"{STATE_IN}{len(states)}") in columns:
        states.append(columns[name])
    return states


def _as_rows(value: Any) -> Any:
    return map_nest(lambda leaf: np.asarray(leaf)[None], value)


def _first(batch: Any) -> Any:
    return batch[0] if isinstance(batch, list) else map_nest(lambda leaf: leaf[0], batch)


class RandomPolicy(Policy):
    """Draws actions uniformly from any action space, by torch's generator, which the worker seeds; learns nothing.

    An observation entry `"action_mask"` at the root of a Dict restricts them to what it allows. Envs get them
    unchanged: `normalize_actions` does not stretch actions that span the space already. With the setting
    `ignore_action_bounds` a Box is sampled as if it had no bounds; then `normalize_actions` brings actions into it.
    """

    looks_at_episodes = False
    acts_in_space = True

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: Mapping[str, Any]) -> None:
        super().__init__(observation_space, action_space, config)
        self._drawn_from = action_space
        if self.config.get("ignore_action_bounds", False) and isinstance(action_space, spaces.Box):
            self._drawn_from, self.acts_in_space = _unbounded_box(action_space), False
        self._mask = mask_reader(observation_space, action_space, type(self).__name__)

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Actions:  # noqa: ARG002  they do not matter
        """Draw random actions, one per observation; dicts and tuples of arrays for Dict and Tuple spaces."""
        n_rows = len(leaves_of(obs_batch)[0])
        mask = None if self._mask is None else torch.as_tensor(self._mask(obs_batch))
        drawn = Uniform(self._drawn_from).sampler(self._drawn_from, n_rows)(mask)
        return build_value(self._drawn_from, iter(drawn)), [], {}

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:  # noqa: ARG002
        """Learn nothing."""
        return {}


def _unbounded_box(box: spaces.Box) -> spaces.Box:
    """Return a Box of the same shape and dtype that reaches as far as the dtype does."""
    dtype: Any = box.dtype
    if np.issubdtype(dtype, np.floating):
        return spaces.Box(-np.inf, np.inf, box.shape, box.dtype)
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, box.shape, box.dtype)
