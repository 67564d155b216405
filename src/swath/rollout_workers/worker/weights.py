"""Weights of a worker's policies, their version, the numbers that all workers share, and the state of it all."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

from swath.errors import warn, warn_of_no_effect
from swath.rollout_workers.config.policy_spec import PolicySpec
from swath.rollout_workers.filters.sharing import copies_of
from swath.rollout_workers.worker.policies import Policies

Weights = dict[str, dict[str, Any]]
"""Arrays by name by policy id."""

TIMESTEP, UPDATES = "timestep", "num_grad_updates_per_policy"


class PolicyWeights:
    """The weights of a worker's policies, and what is counted with them.

    Args:
        policies: the worker's.

    Attributes:
        version: own number of the weights: 0, then higher with each change.
        seq_no: the number last given with weights; None if none was.
        global_vars: what all workers know.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self.version = 0
        self.seq_no: int | None = None
        self.global_vars: dict[str, Any] = {TIMESTEP: 0, UPDATES: {}}
        self._unknown: set[str] = set()

    def changed(self) -> None:
        """Weights have changed."""
        self.version = max(self.version + 1, self.seq_no or 0)

    def get(self, policies: Collection[str] | str | None, *, inference_only: bool) -> Weights:
        """Copies by policy id.

        Raises:
            KeyError: an unknown id.
        """
        if inference_only:
            warn_of_no_effect("inference_only", "rows are post-processed in workers, for which all weights are needed")
        ids = list(self._policies.map) if policies is None else _ids(policies)
        return {policy_id: self._policies.get(policy_id).get_weights() for policy_id in ids}

    def set(self, weights: Any, seq_no: int | None) -> None:
        """Copy weights in, all or none; those of policies that are not here are left out, and warned of once.

        Raises:
            ValueError: names or shapes that a policy does not have.
        """
        if seq_no is not None and seq_no == self.seq_no:
            return
        given = fetched(weights)
        for policy_id in sorted(given.keys() - self._policies.map.keys() - self._unknown):
            self._unknown.add(policy_id)
            warn(f"set_weights was given weights of policy {policy_id!r}, which is not here; they are left out")
        known = {policy_id: given[policy_id] for policy_id in given if policy_id in self._policies.map}
        with ExitStack() as undoing:
            for policy_id, each in known.items():
                policy = self._policies.map[policy_id]
                before = policy.get_weights() if len(known) > 1 else None
                policy.set_weights(fetched(each))
                undoing.callback(policy.set_weights, before)
            undoing.pop_all()  # nothing has raised
        self.seq_no = seq_no
        self.changed()

    def set_global_vars(self, given: Mapping[str, Any], policy_ids: Iterable[str] | str | None) -> None:
        """Take numbers over and give them to policies.

        Raises:
            KeyError: an unknown id.
        """
        ids = sorted(self._policies.trainable()) if policy_ids is None else _ids(policy_ids)
        policies = {policy_id: self._policies.get(policy_id) for policy_id in ids}
        self.global_vars.update(deepcopy(dict(given)))
        for policy_id, policy in policies.items():
            numbers = {name: value for name, value in self.global_vars.items() if name != UPDATES}
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
            "global_vars": deepcopy(self.global_vars),
            "weights_seq_no": self.seq_no,
            "policy_version": self.version,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave; what is not in it stays. Policies that are missing here are added.

        Raises:
            Exception: what a policy or a filter raised that cannot take its part over; nothing is set.
        """
        policies = self._policies
        with ExitStack() as undoing:
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
        self.seq_no = state.get("weights_seq_no", self.seq_no)
        self.version = state.get("policy_version", self.version)


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
