"""What a worker does to let its policies learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swath.rollout_workers.batches.multi_agent import MultiAgentBatch
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.parts.policies import Policies

Batch = SampleBatch | MultiAgentBatch


def batches_to_train(policies: Policies, samples: Batch) -> dict[str, SampleBatch]:
    """The batches of policies that learn, by id; those of policies that are not here are left out."""
    whole = samples.as_multi_agent()
    return {
        policy_id: batch
        for policy_id, batch in whole.policy_batches.items()
        if policy_id in policies.map and policies.learns(policy_id, samples)
    }


def learn(policies: Policies, samples: Batch) -> dict[str, Any]:
    """One update of each policy that learns and has rows; what each tells."""
    batches = batches_to_train(policies, samples)
    return {policy_id: policies.map[policy_id].learn_on_batch(batch) for policy_id, batch in batches.items()}


def gradients(policies: Policies, samples: Batch, *, single_agent: bool | None) -> tuple[Any, dict[str, Any]]:
    """Gradients and infos by policy id; of the default policy alone if `single_agent`.

    Raises:
        ValueError: `single_agent`, but the batch is of other policies.
    """
    if single_agent:
        return _of_one(policies, samples)
    batches = batches_to_train(policies, samples)
    made = {policy_id: policies.map[policy_id].compute_gradients(batch) for policy_id, batch in batches.items()}
    infos: dict[str, Any] = {policy_id: info for policy_id, (_, info) in made.items()}
    return {policy_id: found for policy_id, (found, _) in made.items()}, {**infos, "batch_count": samples.count}


def apply(policies: Policies, grads: Any) -> None:
    """One step by gradients, by policy id or of the default policy.

    Raises:
        KeyError: an unknown id.
        ValueError: gradients that do not fit; nothing is applied to that policy or those behind it.
    """
    given = grads if isinstance(grads, Mapping) else {DEFAULT_POLICY_ID: grads}
    chosen = {policy_id: policies.get(policy_id) for policy_id in given}
    for policy_id, policy in chosen.items():
        if policies.learns(policy_id):
            policy.apply_gradients(given[policy_id])


def _of_one(policies: Policies, samples: Batch) -> tuple[Any, dict[str, Any]]:
    whole = samples.as_multi_agent()
    if set(whole.policy_batches) != {DEFAULT_POLICY_ID}:
        raise ValueError(
            f"single_agent=True is for a batch of {DEFAULT_POLICY_ID!r}; this one is of {sorted(whole.policy_batches)}"
        )
    found, info = policies.get(DEFAULT_POLICY_ID).compute_gradients(whole[DEFAULT_POLICY_ID])
    return found, info
