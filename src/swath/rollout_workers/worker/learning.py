"""What a worker does to let its policies learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from swath.rollout_workers import distributed
from swath.rollout_workers.batches.multi_agent import MultiAgentBatch
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.worker.policies import Policies
from swath.rollout_workers.worker.weights import PolicyWeights

Batch = SampleBatch | MultiAgentBatch


class Learning:
    """Updates of the policies of a worker, alone or as one of several ranks.

    Args:
        policies: the worker's.
        weights: likewise; their version grows with each update.
    """

    def __init__(self, policies: Policies, weights: PolicyWeights) -> None:
        self._policies, self._weights = policies, weights

    def chosen(self, samples: Batch) -> list[tuple[str, Any, SampleBatch]]:
        """Policies that learn, and their batches, by id; in the same order on all ranks.

        Raises:
            TypeError: `samples` is no batch.
        """
        return self._agreed(
            {
                policy_id: batch
                for policy_id, batch in _by_policy(samples).items()
                if policy_id in self._policies.map and self._policies.learns(policy_id, samples)
            }
        )

    def update(self, samples: Batch, update: Callable[[Any, SampleBatch], Any]) -> dict[str, Any]:
        """What `update(policy, batch)` reports of each policy that learns; the version grows also if one raises."""
        chosen = self.chosen(samples)
        try:
            return {policy_id: update(policy, batch) for policy_id, policy, batch in chosen}
        finally:
            if chosen:
                self._weights.changed()

    def gradients_of_one(self, samples: Batch) -> tuple[Any, dict[str, Any]]:
        """Gradients and info of the default policy.

        Raises:
            ValueError: the batch is of other policies.
        """
        found = _by_policy(samples)
        if set(found) != {DEFAULT_POLICY_ID}:
            ids = sorted(found)
            raise ValueError(f"single_agent=True is for a batch of {DEFAULT_POLICY_ID!r}; this one is of {ids}")
        ((_, policy, batch),) = self._agreed(found)
        gradients, info = policy.compute_gradients(batch)
        return gradients, info

    def apply(self, grads: Any) -> None:
        """One step by gradients, by policy id or of the default policy; of those that do not learn nothing is applied.

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
        try:
            for policy_id, policy in chosen.items():
                policy.apply_gradients(given[policy_id])
        finally:
            if chosen:
                self._weights.changed()

    def join(self, url: str, world_rank: int, world_size: int, backend: str, timeout_s: float) -> None:
        """Be one of several ranks; see `distributed.join`."""
        distributed.join(self._policies.map, url, world_rank, world_size, backend, timeout_s)
        self._policies.on_ranks = True
        self._weights.changed()

    def leave(self) -> None:
        """Learn alone again; nothing happens if it does."""
        if self._policies.on_ranks:
            distributed.leave(self._policies.map)
            self._policies.on_ranks = False

    def _agreed(self, batches: dict[str, SampleBatch]) -> list[tuple[str, Any, SampleBatch]]:
        """Policies and their batches, in the same order on all ranks."""
        if self._policies.on_ranks:
            batches = dict(sorted(batches.items()))
            distributed.require_same(list(batches), "policies in the batch")
        return [(policy_id, self._policies.get(policy_id), batch) for policy_id, batch in batches.items()]


def _by_policy(samples: Batch) -> dict[str, SampleBatch]:
    if not isinstance(samples, SampleBatch | MultiAgentBatch):
        raise TypeError(f"samples is of type {type(samples).__name__}; give a SampleBatch or a MultiAgentBatch")
    return samples.as_multi_agent().policy_batches
