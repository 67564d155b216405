"""What a worker asks of a policy, what it does where a class says nothing, and a policy that acts at random."""

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
from swath.rollout_workers.batches.names import BEFORE, STATE_IN, ColumnNames, ViewRequirement, views
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.callbacks import DefaultCallbacks
from swath.rollout_workers.config.policy_spec import PolicySpec, copied
from swath.rollout_workers.nests import leaves_of, map_nest
from swath.rollout_workers.preprocessors import mask_reader

P = ParamSpec("P")
T = TypeVar("T")

# Actions `[n, …]` (or a list of n), states `[n, …]`, and columns `[n, …]` for the batch by name.
Actions = tuple[Any, list[Any], dict[str, Any]]

# Optional columns, by the arguments of `compute_actions`.
_OPTIONAL = {
    "prev_action_batch": ColumnNames.PREV_ACTIONS,
    "prev_reward_batch": ColumnNames.PREV_REWARDS,
    "info_batch": ColumnNames.INFOS,
}

# Arrays by name.
Weights = dict[str, np.ndarray[Any, Any]]


class Policy(ABC):
    """Chooses actions for the agents that map to it; derive from it and write `compute_actions`.

    Args:
        observation_space: of what it is given: processed observations.
        action_space: of its agents.
        config: the settings, with `worker_index`, `num_workers` and `__policy_id`.

    Attributes:
        view_requirements: which optional columns it reads, see `swath.rollout_workers.batches.names`.
        global_timestep: steps sampled for it by all workers, as far as it is known here.
        num_grad_updates: how often its weights were updated by gradients.
        distributed_world_size: how many ranks average their gradients.
        callbacks: whose `on_learn_on_batch` is called; the worker sets it.
        looks_at_episodes: whether it reads the `episodes` that it is given; False spares the worker to make them. A
            class that acts in its own way looks at them unless its body says otherwise.
        values_later: whether a worker leaves `vf_preds` to `compute_values`, which it asks about many rows at once, and
            acts `with_values=False`. Likewise.
        acts_in_space: whether envs get its actions as they are, whatever `normalize_actions` says. Likewise false for a
            class that acts in its own way, unless its body says otherwise.
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
        self.view_requirements: dict[str, ViewRequirement] = views(*BEFORE)
        self.global_timestep = self.num_grad_updates = 0
        self.distributed_world_size = 1
        self.callbacks: DefaultCallbacks | None = None

    def __repr__(self) -> str:
        name = self.config.get("__policy_id")
        named = "" if name is None else f" {name!r}"
        return f"<{type(self).__name__}{named}: {self.num_grad_updates} updates, at step {self.global_timestep}>"

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
        """Actions for n rows.

        Args:
            obs_batch: processed and filtered observations `[n, …]`.
            state_batches: states `[n, …]`, as `get_initial_state` has them.
            prev_action_batch: actions before `[n, …]`, if `view_requirements` ask for them.
            prev_reward_batch: rewards before `[n]`, likewise.
            info_batch: the infos that came with the observations, likewise.
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
        """Actions for rows that are given as columns by name; as `compute_actions`, which it calls."""
        how = {"explore": explore, "timestep": timestep, "episodes": episodes, **kwargs}
        how |= {argument: input_dict.get(name) for argument, name in _OPTIONAL.items()}
        return self.compute_actions(input_dict[ColumnNames.OBS], states_in(input_dict), **how)

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
        """One action, its states and its extras, none of them batched.

        Args:
            obs: one processed and filtered observation.
            state: its states.
            prev_action: the action before.
            prev_reward: the reward before.
            info: what came with the observation.
            input_dict: all of these by column's name, in their place.
            episode: the observation's.
            explore: as in `compute_actions`.
            timestep: as in `compute_actions`.

        Raises:
            ValueError: neither `obs` nor `input_dict`.
        """
        if input_dict is None:
            names = ColumnNames.OBS, ColumnNames.INFOS, *BEFORE
            given = dict(zip(names, (obs, info, prev_action, prev_reward), strict=True))
            given |= {f"{STATE_IN}{i}": part for i, part in enumerate(state or ())}
            input_dict = {name: value for name, value in given.items() if value is not None}
        if ColumnNames.OBS not in input_dict:
            raise ValueError("compute_single_action() needs obs or input_dict")
        rows = {name: [value] if name == ColumnNames.INFOS else _as_rows(value) for name, value in input_dict.items()}
        episodes = None if episode is None else [episode]
        actions, states_out, extra = self.compute_actions_from_input_dict(rows, explore, timestep, episodes)
        return _first(actions), [_first(part) for part in states_out], {name: _first(extra[name]) for name in extra}

    def compute_log_likelihoods(self, *args: Any, **kwargs: Any) -> Any:
        """Log-probabilities `[n]` of actions; see `TorchPolicy.compute_log_likelihoods` for the arguments."""
        raise NotImplementedError(f"{type(self).__name__} has no compute_log_likelihoods")

    def postprocess_trajectory(
        self, sample_batch: SampleBatch, other_agent_batches: Any = None, episode: Any = None
    ) -> SampleBatch:
        """What becomes of a chunk of one agent's trajectory: the batch, same or new, as it is here.

        Overridden, it is called once per chunk; else it is not called at all.

        Args:
            sample_batch: consecutive rows of one agent in one episode.
            other_agent_batches: `(policy id, policy, rows)` of the other agents by their ids.
            episode: the episode.
        """
        del other_agent_batches, episode  # for those who override it
        return sample_batch

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:
        """Update the weights from a batch; `compute_gradients`, then `apply_gradients`.

        Returns:
            Info with the `learner_stats`.
        """
        gradients, info = self.compute_gradients(samples)
        self.apply_gradients(gradients)
        return info

    def compute_gradients(self, postprocessed_batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        """Gradients of the loss on a batch, and info; the weights stay."""
        raise NotImplementedError(f"{type(self).__name__} has neither learn_on_batch nor compute_gradients")

    def apply_gradients(self, gradients: Any) -> None:
        """Update the weights by gradients as `compute_gradients` gives them."""
        raise NotImplementedError(f"{type(self).__name__} has no apply_gradients")

    def check_gradients(self, gradients: Any) -> None:  # noqa: B027  nothing to object to
        """Raise what `apply_gradients` would for gradients that do not fit, and apply nothing.

        A worker asks all its policies before it applies anything to one; by default nobody objects.
        """

    def get_weights(self) -> Weights:
        """Copies of all weights by name."""
        return {}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Take weights over."""
        if weights:
            raise NotImplementedError(f"{type(self).__name__} has no weights, but was given {sorted(weights)}")

    def get_state(self) -> dict[str, Any]:
        """All that a policy needs to go on elsewhere; nothing in it is shared with this one."""
        spec = PolicySpec(type(self), self.observation_space, self.action_space, copied(self.config))
        return {
            "weights": self.get_weights(),
            "global_timestep": self.global_timestep,
            "num_grad_updates": self.num_grad_updates,
            "policy_spec": spec.serialize(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave."""
        self.set_weights(state["weights"])
        self.global_timestep, self.num_grad_updates = state["global_timestep"], state.get("num_grad_updates", 0)

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Policy:
        """A new policy from what `get_state` gave.

        Raises:
            ValueError: its class cannot be imported.
        """
        spec = PolicySpec.deserialize(state["policy_spec"])
        assert spec.policy_class is not None
        policy: Policy = spec.policy_class(spec.observation_space, spec.action_space, copied(spec.config))
        policy.set_state(state)
        return policy

    def get_initial_state(self) -> list[Any]:
        """The states of an agent at the begin of an episode, not batched; empty if it remembers nothing."""
        return []

    def is_recurrent(self) -> bool:
        """Whether it remembers anything."""
        return False

    def num_state_tensors(self) -> int:
        """How many states it has."""
        return len(self.get_initial_state())

    def on_global_var_update(self, global_vars: Mapping[str, Any]) -> None:
        """Take the `timestep` of all workers and, if given, the `num_grad_updates`."""
        self.global_timestep = int(global_vars["timestep"])
        updates = global_vars.get("num_grad_updates")
        if updates is not None:
            self.num_grad_updates = int(updates)

    def apply(self, func: Callable[Concatenate[Self, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`func(self, …)`."""
        return func(self, *args, **kwargs)

    def get_host(self) -> str:
        """The name of the machine."""
        return platform.node()

    def get_session(self) -> None:
        """None: there are no TensorFlow sessions."""
        return None  # noqa: RET501  an empty method would look as if it were to be written

    def get_connector_metrics(self) -> None:
        """Raise: there are no connectors."""
        raise NotImplementedError("there are no connectors; worker.get_metrics() has the times of steps in perf_stats")


def states_in(columns: Mapping[str, Any]) -> list[Any]:
    """The states among columns, in their order."""
    found: list[Any] = []
    while (name := f"{STATE_IN}{len(found)}") in columns:
        found.append(columns[name])
    return found


def _as_rows(value: Any) -> Any:
    return map_nest(lambda leaf: np.asarray(leaf)[None], value)


def _first(batch: Any) -> Any:
    return batch[0] if isinstance(batch, list) else map_nest(lambda leaf: leaf[0], batch)


class RandomPolicy(Policy):
    """Actions drawn uniformly from any action space, by torch's generator, which the worker seeds; learns nothing.

    An observation entry `"action_mask"` at the root of a Dict restricts them to what it allows.
    They are those that envs get: `normalize_actions` does not stretch what spans the space already.
    With `ignore_action_bounds=True` in its config a Box is sampled as if it had no bounds; then `normalize_actions`
    brings actions into the space, as those of other policies.
    """

    looks_at_episodes = False
    acts_in_space = True

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: Mapping[str, Any]) -> None:
        super().__init__(observation_space, action_space, config)
        self._drawn_from = action_space
        if self.config.get("ignore_action_bounds", False) and isinstance(action_space, spaces.Box):
            self._drawn_from, self.acts_in_space = _unbounded(action_space), False
        self._mask = mask_reader(observation_space, action_space, type(self).__name__)

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Actions:  # noqa: ARG002  they do not matter
        """Random actions, one per observation; dicts and tuples of arrays for such action spaces."""
        n_rows = len(leaves_of(obs_batch)[0])
        mask = None if self._mask is None else torch.as_tensor(self._mask(obs_batch))
        drawn = Uniform(self._drawn_from).sampler(self._drawn_from, n_rows)(mask)
        return build_value(self._drawn_from, iter(drawn)), [], {}

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:  # noqa: ARG002
        """Learn nothing."""
        return {}


def _unbounded(box: spaces.Box) -> spaces.Box:
    """A Box of that shape and dtype that reaches as far as the dtype does."""
    dtype: Any = box.dtype
    if np.issubdtype(dtype, np.floating):
        return spaces.Box(-np.inf, np.inf, box.shape, box.dtype)
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, box.shape, box.dtype)
