"""What a worker does with its policies, whether it has envs or not: weights, filters, mapping, state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

from swath.errors import warn, warn_of_no_effect
from swath.nearest import with_options
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.policy_spec import PolicySpec
from swath.rollout_workers.env_runner import EnvRunner
from swath.rollout_workers.filters import Filter, copies_of, rebase_all
from swath.rollout_workers.preprocessors import Preprocessor
from swath.rollout_workers.worker.policies import NewPolicy, Policies, check_arrangement

Weights = dict[str, dict[str, Any]]
"""Arrays by name by policy id."""

TIMESTEP, UPDATES = "timestep", "num_grad_updates_per_policy"


class PolicyMethods(EnvRunner):
    """Has policies with weights, filters and preprocessors.

    Attributes:
        config: the worker's settings.
        policy_map: the policies by id.
        policy_dict: complete specs by policy id.
        filters: observation filters by policy id.
        preprocessors: likewise.
        global_vars: what all workers know.
    """

    config: AlgorithmConfig
    policy_map: dict[str, Any]
    policy_dict: dict[str, PolicySpec]
    filters: dict[str, Filter]
    preprocessors: dict[str, Preprocessor]
    global_vars: dict[str, Any]
    _policies: Policies
    _unknown: set[str]

    def _have(self, policies: Policies) -> None:
        """These are the worker's policies."""
        self._policies = policies
        self.policy_map, self.policy_dict = policies.map, policies.specs
        self.filters, self.preprocessors = policies.filters, policies.preprocessors
        self.global_vars, self._unknown = {TIMESTEP: 0, UPDATES: {}}, set()

    @property
    def policy_mapping_fn(self) -> Callable[..., str]:
        """Which policy acts for an agent."""
        return self._policies.mapping

    @property
    def is_policy_to_train(self) -> Callable[..., bool] | None:
        """`f(policy_id, batch) -> bool`; None if all learn."""
        return self._policies.to_train

    @property
    def weights_seq_no(self) -> int | None:
        """The number last given with weights; None if none was."""
        return self._policies.seq_no

    @property
    def policy_version(self) -> int:
        """Own number of the weights: 0, then higher with each change."""
        return self._policies.version

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Any:
        """The policy of this id, or None."""
        return self.policy_map.get(policy_id)

    @with_options(NewPolicy)
    def add_policy(self, new: NewPolicy) -> Any:  # noqa: D417  its fields are the arguments
        """Add a policy: all of it, or nothing.

        Args:
            policy_id: a new one.
            policy_cls: its class; or
            policy: the policy itself, used as it is.
            observation_space: before preprocessing; None: found out as for policies of the config.
            action_space: likewise.
            config: overrides of the worker's settings, or a whole config.
            policy_state: set right after it is built.
            policy_mapping_fn: another mapping, for new episodes.
            policies_to_train: others learn.
            module_spec: not served.

        Raises:
            KeyError: the id is taken.
            ValueError: not exactly one of class and object; a `module_spec`; no spaces.
            TypeError: a class that is none, or a class in place of an object.
            RuntimeError: the worker is one of several ranks: the others would not have the policy.
        """
        policies, policy_id = self._policies, new.policy_id
        setup, _ = self.config.get_multi_agent_setup(policies={policy_id: new.spec}, **self._sources())
        with policies.drawing():
            made = policies.add(policy_id, setup[policy_id], new.policy, new.policy_state)
        policies.arrange(new.policy_mapping_fn, new.policies_to_train)
        return made

    def remove_policy(
        self,
        *,
        policy_id: str = DEFAULT_POLICY_ID,
        policy_mapping_fn: Callable[..., str] | None = None,
        policies_to_train: Collection[str] | Callable[..., bool] | None = None,
    ) -> None:
        """Remove a policy; agents that it acts for go on with it until their episodes end.

        Raises:
            ValueError: there is none of this id.
        """
        check_arrangement(policy_mapping_fn, policies_to_train)
        self._policies.remove(policy_id)
        self._policies.arrange(policy_mapping_fn, policies_to_train)

    def for_policy(self, func: Callable[..., Any], policy_id: str = DEFAULT_POLICY_ID, **kwargs: Any) -> Any:
        """`func(policy, **kwargs)`.

        Raises:
            KeyError: there is none of this id.
        """
        return func(self._policies.get(policy_id), **kwargs)

    def foreach_policy(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """`func(policy, policy_id, **kwargs)` of each."""
        return [func(policy, policy_id, **kwargs) for policy_id, policy in list(self.policy_map.items())]

    def foreach_policy_to_train(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """The same of those that learn."""
        learning = self._policies.trainable()
        each = list(self.policy_map.items())
        return [func(policy, policy_id, **kwargs) for policy_id, policy in each if policy_id in learning]

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Another mapping of agents to policies, for new episodes; None keeps it.

        Raises:
            ValueError: it cannot be called; the old one stays.
        """
        self._policies.arrange(policy_mapping_fn, None)

    def set_is_policy_to_train(self, is_policy_to_train: Collection[str] | Callable[..., bool]) -> None:
        """Other policies learn.

        Raises:
            TypeError: it is no list, set or tuple of ids, and no function; the old one stays.
        """
        if is_policy_to_train is None:
            raise TypeError("is_policy_to_train=None: give a list, set or tuple of policy ids, or a function")
        self._policies.arrange(None, is_policy_to_train)

    def get_policies_to_train(self, batch: Any = None) -> set[str]:
        """The ids of policies that learn."""
        return self._policies.trainable(batch)

    def get_filters(self, flush_after: bool = False) -> dict[str, Filter]:
        """Copies of the filters; their buffers are emptied afterwards if asked for."""
        return copies_of(self.filters, flush_after=flush_after)

    def sync_filters(self, new_filters: Mapping[str, Filter]) -> None:
        """Take the statistics of others over; what is in the own buffers is learnt on top of them.

        Raises:
            AssertionError: a policy of this worker has none among them.
        """
        rebase_all(self.filters, new_filters)

    def get_weights(self, policies: Collection[str] | str | None = None, inference_only: bool = False) -> Weights:
        """Copies of weights by policy id and name.

        Args:
            policies: an id or several; None: all.
            inference_only: without effect.

        Raises:
            KeyError: an unknown id.
        """
        if inference_only:
            warn_of_no_effect("inference_only", "rows are post-processed in workers, for which all weights are needed")
        ids = self.policy_map if policies is None else _ids(policies)
        return {policy_id: self._policies.get(policy_id).get_weights() for policy_id in ids}

    def set_weights(
        self, weights: Any, global_vars: Mapping[str, Any] | None = None, weights_seq_no: int | None = None
    ) -> None:
        """Copy weights in, all or none.

        Args:
            weights: arrays or tensors by policy id and name; references of Ray are fetched. Those of policies that are
                not here are left out, and warned of once.
            global_vars: as for `set_global_vars`.
            weights_seq_no: their number; weights of the number that is here already are left out.

        Raises:
            ValueError: names or shapes that a policy does not have; the message lists them.
        """
        policies = self._policies
        if weights_seq_no is None or weights_seq_no != policies.seq_no:
            self._copy_in(fetched(weights))
            policies.seq_no = weights_seq_no
            policies.changed()
        if global_vars is not None:
            self.set_global_vars(global_vars)

    def get_global_vars(self) -> dict[str, Any]:
        """A copy of what all workers know: `timestep`, `num_grad_updates_per_policy`."""
        return deepcopy(self.global_vars)

    def set_global_vars(self, global_vars: Mapping[str, Any], policy_ids: Iterable[str] | str | None = None) -> None:
        """Take numbers over, and give them to policies.

        Args:
            global_vars: added to what is known, as by `dict.update`.
            policy_ids: who gets them; None: those that learn.

        Raises:
            KeyError: an unknown id.
        """
        ids = sorted(self._policies.trainable()) if policy_ids is None else _ids(policy_ids)
        policies = {policy_id: self._policies.get(policy_id) for policy_id in ids}
        self.global_vars.update(deepcopy(dict(global_vars)))
        numbers = {name: value for name, value in self.global_vars.items() if name != UPDATES}
        for policy_id, policy in policies.items():
            updates = self.global_vars[UPDATES].get(policy_id)
            policy.on_global_var_update(numbers if updates is None else {**numbers, "num_grad_updates": updates})

    def get_state(self) -> dict[str, Any]:
        """What it takes to go on elsewhere; nothing changes by it."""
        policies = self._policies
        return {
            "policy_ids": list(policies.map),
            "policy_states": {policy_id: policy.get_state() for policy_id, policy in policies.map.items()},
            "policy_mapping_fn": policies.mapping,
            "is_policy_to_train": policies.to_train,
            "filters": copies_of(policies.filters),
            "global_vars": self.get_global_vars(),
            "weights_seq_no": policies.seq_no,
            "policy_version": policies.version,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave; what is not in it stays. Policies that are missing here are added.

        Raises:
            Exception: what a policy or a filter raised that cannot take its part over; nothing is set.
        """
        policies = self._policies
        with policies.drawing(), ExitStack() as undoing:
            for policy_id, given in state.get("policy_states", {}).items():
                if (policy := policies.map.get(policy_id)) is None:
                    policies.add(policy_id, _spec_of(given), None, given)
                    undoing.callback(policies.remove, policy_id)
                else:
                    undoing.callback(policy.set_state, policy.get_state())
                    policy.set_state(given)
            for policy_id, kept in state.get("filters", {}).items():
                if (own := policies.filters.get(policy_id)) is not None:
                    undoing.callback(own.sync, own.copy())
                    own.sync(kept)
            undoing.pop_all()  # nothing has raised
        policies.mapping = state.get("policy_mapping_fn", policies.mapping)
        policies.to_train = state.get("is_policy_to_train", policies.to_train)
        self.global_vars.update(deepcopy(state.get("global_vars", {})))
        policies.seq_no = state.get("weights_seq_no", policies.seq_no)
        policies.version = state.get("policy_version", policies.version)

    def _copy_in(self, weights: Mapping[str, Any]) -> None:
        """Copy weights in, all or none; those of policies that are not here are left out, and warned of once."""
        for policy_id in sorted(weights.keys() - self.policy_map.keys() - self._unknown):
            self._unknown.add(policy_id)
            warn(f"set_weights was given weights of policy {policy_id!r}, which is not here; they are left out")
        known = {policy_id: weights[policy_id] for policy_id in weights if policy_id in self.policy_map}
        with ExitStack() as undoing:
            for policy_id, each in known.items():
                policy = self.policy_map[policy_id]
                before = policy.get_weights() if len(known) > 1 else None
                policy.set_weights(fetched(each))
                undoing.callback(policy.set_weights, before)
            undoing.pop_all()  # nothing has raised

    def _sources(self) -> dict[str, Any]:
        """Where `get_multi_agent_setup` looks for what specs leave empty."""
        raise NotImplementedError


def _ids(given: Iterable[str] | str) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _spec_of(state: Mapping[str, Any]) -> PolicySpec:
    """The spec in a policy's state, with observations as they are before preprocessing."""
    spec = PolicySpec.deserialize(state["policy_spec"])
    spec.observation_space = getattr(spec.observation_space, "original_space", spec.observation_space)
    return spec


def fetched(value: Any) -> Any:
    """What a reference of Ray stands for, fetched; anything else itself."""
    if isinstance(value, Mapping) or type(value).__module__.partition(".")[0] != "ray":
        return value
    return sys.modules["ray"].get(value)
