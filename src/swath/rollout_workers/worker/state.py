"""The state of a worker: read without a trace, set elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

from swath.rollout_workers.config.policy_spec import PolicySpec
from swath.rollout_workers.filters.sharing import copies_of
from swath.rollout_workers.worker.policies import Policies
from swath.rollout_workers.worker.weights import WeightBook

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
    """Go on from what `state_of` gave; what is not in it stays. Policies that are missing here are added.

    Raises:
        Exception: what a policy or a filter raised that cannot take its part over; nothing is set.
    """
    with ExitStack() as undoing:
        for policy_id, told in state.get(_POLICIES, {}).items():
            _restore_policy(policies, policy_id, told, undoing)
        for policy_id, kept in state.get("filters", {}).items():
            if (own := policies.filters.get(policy_id)) is not None:
                undoing.callback(own.sync, own.copy())
                own.sync(kept)
        undoing.pop_all()  # nothing has raised
    policies.mapping = state.get("policy_mapping_fn", policies.mapping)
    policies.to_train = state.get("is_policy_to_train", policies.to_train)
    book.global_vars.update(deepcopy(state.get("global_vars", {})))
    book.seq_no = state.get("weights_seq_no", book.seq_no)
    book.version = state.get("policy_version", book.version)


def _restore_policy(policies: Policies, policy_id: str, told: Mapping[str, Any], undoing: ExitStack) -> None:
    """Set the state of a policy, or add the policy; how that is undone goes onto the stack."""
    policy = policies.map.get(policy_id)
    if policy is None:
        policies.add(policy_id, _spec_of(told), None, told)
        undoing.callback(policies.remove, policy_id)
    else:
        undoing.callback(policy.set_state, policy.get_state())
        policy.set_state(told)


def _spec_of(told: Mapping[str, Any]) -> PolicySpec:
    """The spec in a policy's state, with observations as they are before preprocessing."""
    spec = PolicySpec.deserialize(told["policy_spec"])
    spec.observation_space = getattr(spec.observation_space, "original_space", spec.observation_space)
    return spec
