"""What a worker does to let its policies learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from swath.rollout_workers import distributed
from swath.rollout_workers.batches.multi_agent import MultiAgentBatch
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.policies.epochs import learn_in_passes
from swath.rollout_workers.worker.policies import Policies

Batch = SampleBatch | MultiAgentBatch


def batches_to_train(policies: Policies, samples: Batch) -> dict[str, SampleBatch]:
    """The batches of policies that learn, by id; those of policies that are not here are left out.

    Raises:
        TypeError: it is no batch.
    """
    whole = _whole(samples)
    return {
        policy_id: batch
        for policy_id, batch in whole.policy_batches.items()
        if policy_id in policies.map and policies.learns(policy_id, samples)
    }


class Learning:
    """Updates of the policies of a worker, alone or as one of several ranks.

    Args:
        policies: the worker's.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._is_rank = False

    def learn(self, samples: Batch) -> dict[str, Any]:
        """One update of each policy that learns and has rows; what each tells."""
        return {policy_id: policy.learn_on_batch(batch) for policy_id, policy, batch in self._chosen(samples)}

    def learn_in_passes(self, samples: Batch, epochs: int, size: int | None, fields: Sequence[str]) -> dict[str, Any]:
        """Several passes of each policy that learns and has rows; what each reports of the last one."""
        return {
            policy_id: learn_in_passes(policy, batch, epochs, size, fields)
            for policy_id, policy, batch in self._chosen(samples)
        }

    def gradients(self, samples: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Gradients, and infos, of each policy that learns and has rows."""
        made = {policy_id: policy.compute_gradients(batch) for policy_id, policy, batch in self._chosen(samples)}
        found = {policy_id: gradients for policy_id, (gradients, _) in made.items()}
        return found, {policy_id: info for policy_id, (_, info) in made.items()}

    def gradients_of_one(self, samples: Batch) -> tuple[Any, dict[str, Any]]:
        """Gradients and info of the default policy.

        Raises:
            ValueError: the batch is of other policies.
        """
        found = _whole(samples).policy_batches
        if set(found) != {DEFAULT_POLICY_ID}:
            ids = sorted(found)
            raise ValueError(f"single_agent=True is for a batch of {DEFAULT_POLICY_ID!r}; this one is of {ids}")
        ((_, policy, batch),) = self._agreed(found)
        gradients, info = policy.compute_gradients(batch)
        return gradients, info

    def apply(self, grads: Any) -> bool:
        """One step by gradients, by policy id or of the default policy; of those that do not learn nothing is applied.

        Returns:
            Whether any were applied.

        Raises:
            KeyError: an unknown id.
            ValueError: gradients that do not fit; nothing is applied.
            FloatingPointError: gradients that are not finite; nothing is applied.
        """
        given = dict(grads) if isinstance(grads, Mapping) else {DEFAULT_POLICY_ID: grads}
        given = {each: list(found) if isinstance(found, Iterator) else found for each, found in given.items()}
        policies = {policy_id: self._policies.get(policy_id) for policy_id in given}
        chosen = {policy_id: policy for policy_id, policy in policies.items() if self._policies.learns(policy_id)}
        for policy_id, policy in chosen.items():
            policy.check_gradients(given[policy_id])
        for policy_id, policy in chosen.items():
            policy.apply_gradients(given[policy_id])
        return bool(chosen)

    def join(self, url: str, world_rank: int, world_size: int, backend: str, timeout_s: float) -> None:
        """Be one of several ranks; see `distributed.join`."""
        distributed.join(self._policies.map, url, world_rank, world_size, backend, timeout_s)
        self._is_rank = True

    def leave(self) -> None:
        """Learn alone again; nothing happens if it does."""
        if self._is_rank:
            distributed.leave(self._policies.map)
            self._is_rank = False

    def _chosen(self, samples: Batch) -> list[tuple[str, Any, SampleBatch]]:
        """Who learns from what; ranks learn in the same order."""
        return self._agreed(batches_to_train(self._policies, samples))

    def _agreed(self, batches: dict[str, SampleBatch]) -> list[tuple[str, Any, SampleBatch]]:
        """Policies and their batches, in the same order on all ranks."""
        if self._is_rank:
            batches = dict(sorted(batches.items()))
            distributed.require_same(list(batches), "policies in the batch")
        return [(policy_id, self._policies.get(policy_id), batch) for policy_id, batch in batches.items()]


def _whole(samples: Batch) -> MultiAgentBatch:
    """The batch by policies."""
    if not isinstance(samples, SampleBatch | MultiAgentBatch):
        raise TypeError(f"samples is of type {type(samples).__name__}; give a SampleBatch or a MultiAgentBatch")
    return samples.as_multi_agent()
