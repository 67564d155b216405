"""What a worker does to let its policies learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from swath.rollout_workers.batches.multi_agent import MultiAgentBatch
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.distributed import Place, Ranks
from swath.rollout_workers.policies.epochs import Passes, learn_in_passes
from swath.rollout_workers.worker.policies import Policies

Batch = SampleBatch | MultiAgentBatch
T = TypeVar("T")


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
        self._ranks: Ranks | None = None

    def together(self, make: Callable[[], T]) -> T:
        """What this gives; where several ranks learn as one, once all have the like, or know that one has not."""
        return make() if self._ranks is None else self._ranks.together(make)

    def learn(self, samples: Batch) -> dict[str, Any]:
        """One update of each policy that learns and has rows; what each tells."""
        return {policy_id: policy.learn_on_batch(batch) for policy_id, policy, batch in self._chosen(samples)}

    def learn_in_passes(self, samples: Batch, passes: Passes) -> dict[str, Any]:
        """Several passes of each policy that learns and has rows; what each tells of the last one."""
        return {policy_id: learn_in_passes(policy, batch, passes) for policy_id, policy, batch in self._chosen(samples)}

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

        def batch_of_one() -> dict[str, SampleBatch]:
            found = _whole(samples).policy_batches
            if set(found) != {DEFAULT_POLICY_ID}:
                ids = sorted(found)
                raise ValueError(f"single_agent=True is for a batch of {DEFAULT_POLICY_ID!r}; this one is of {ids}")
            return {DEFAULT_POLICY_ID: found[DEFAULT_POLICY_ID]}

        ((_, policy, batch),) = self._agreed(batch_of_one)
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

    def join(self, place: Place) -> None:
        """Be one of several ranks.

        Raises:
            RuntimeError: it is one already.
            ValueError: a policy that is not torch, or others than those of the other ranks.
        """
        self._ranks = Ranks.join(place, self._policies.map)

    def leave(self) -> None:
        """Learn alone again; nothing happens if it does."""
        if self._ranks is not None:
            self._ranks.leave()
            self._ranks = None

    def _chosen(self, samples: Batch) -> list[tuple[str, Any, SampleBatch]]:
        """Who learns from what; ranks learn in the same order."""
        return self._agreed(lambda: batches_to_train(self._policies, samples))

    def _agreed(self, choose: Callable[[], dict[str, SampleBatch]]) -> list[tuple[str, Any, SampleBatch]]:
        """Policies and their batches, in the same order on all ranks."""
        batches = choose() if self._ranks is None else self._ranks.require_same(choose)
        return [(policy_id, self._policies.get(policy_id), batch) for policy_id, batch in batches.items()]


def _whole(samples: Batch) -> MultiAgentBatch:
    """The batch by policies."""
    if not isinstance(samples, SampleBatch | MultiAgentBatch):
        raise TypeError(f"samples is of type {type(samples).__name__}; give a SampleBatch or a MultiAgentBatch")
    return samples.as_multi_agent()
