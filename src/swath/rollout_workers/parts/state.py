"""The state of a worker: read without a trace, set elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from swath.rollout_workers.config import PolicySpec
from swath.rollout_workers.filters.sharing import copies_of
from swath.rollout_workers.parts.policies import Policies
from swath.rollout_workers.parts.weights import WeightBook

_POLICIES = "policy_states"


def state_of(policies: Policies, book: WeightBook) -> dict[str, Any]:
    """What it takes to go on elsewhere; nothing changes by it."""
    return {
        "policy_ids": list(policies.map),
        _POLICIES: {policy_id: policy.get_state() for policy_id, policy in policies.map.items()},
        "policy_mapping_fn": policies.mapping,
        "is_policy_to_train": policies.to_train,
        "filters": copies_of(policies.filters),
        "global_vars": deepcopy(book.global_vars),
        "weights_seq_no": book.seq_no,
        "policy_version": book.version,
    }


def restore(policies: Policies, book: WeightBook, state: Mapping[str, Any]) -> None:
    """Go on from what `state_of` gave; what is not in it stays. Policies that are missing here are added."""
    for policy_id, told in state.get(_POLICIES, {}).items():
        if policy_id in policies.map:
            policies.map[policy_id].set_state(told)
        else:
            policies.add(policy_id, _spec_of(told), None, told)
    for policy_id, kept in state.get("filters", {}).items():
        if policy_id in policies.filters:
            policies.filters[policy_id].sync(kept)
    policies.mapping = state.get("policy_mapping_fn", policies.mapping)
    policies.to_train = state.get("is_policy_to_train", policies.to_train)
    book.global_vars.update(deepcopy(state.get("global_vars", {})))
    book.seq_no = state.get("weights_seq_no", book.seq_no)
    book.version = state.get("policy_version", book.version)


def _spec_of(told: Mapping[str, Any]) -> PolicySpec:
    """The spec in a policy's state, with observations as they are before preprocessing."""
    spec = PolicySpec.deserialize(told["policy_spec"])
    spec.observation_space = getattr(spec.observation_space, "original_space", spec.observation_space)
    return spec
