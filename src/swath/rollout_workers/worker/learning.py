"""How a worker's policies learn, alone or as one of several ranks.

```
join    compare policies ──▶ weights of rank 0 to all          any difference is an error on every rank
learn   compare policy ids of the batch ──▶ gradients of each ──▶ mean over ranks ──▶ the same step everywhere
```
While a rank raises in between, the others wait until the group's timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch import distributed

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch, SampleBatch
from swath.rollout_workers.config.checks import choice, positive_seconds
from swath.rollout_workers.policies.learning import barrier, gather_objects, set_timeout
from swath.rollout_workers.policies.torch import TorchPolicy
from swath.rollout_workers.worker.policies import learns, require_policy

Batch: TypeAlias = SampleBatch | MultiAgentBatch
PolicyBatches: TypeAlias = list[tuple[str, Any, SampleBatch]]
"""Policy id, policy and its batch."""


def trainable_batches(worker: Any, samples: Batch) -> PolicyBatches:
    """Return the policies that learn, with their batches, in the same order on all ranks."""
    batches = {policy_id: batch for policy_id, batch in _by_policy(samples).items() if policy_id in worker.policy_map}
    learning = [policy_id for policy_id in batches if learns(worker, policy_id, samples)]
    return _same_on_all_ranks(worker, {policy_id: batches[policy_id] for policy_id in learning})


def default_policy_batch(worker: Any, samples: Batch) -> PolicyBatches:
    """Return the default policy with its batch, the only one in `samples`.

    Raises:
        ValueError: the batch is of other policies.
    """
    batches = _by_policy(samples)
    if set(batches) != {DEFAULT_POLICY_ID}:
        raise ValueError(f"single_agent=True is for a batch of {DEFAULT_POLICY_ID!r}, not of {sorted(batches)}")
    return _same_on_all_ranks(worker, batches)


def apply_gradients(worker: Any, grads: Any) -> bool:
    """Apply gradients to the policies that learn, all or nothing; return whether any policy has changed."""
    by_policy = grads if isinstance(grads, Mapping) else {DEFAULT_POLICY_ID: grads}
    policies = {policy_id: require_policy(worker, policy_id) for policy_id in by_policy}
    steps = [(policies[policy_id], list(by_policy[policy_id])) for policy_id in policies if learns(worker, policy_id)]
    for policy, gradients in steps:
        policy.check_gradients(gradients)
    for policy, gradients in steps:
        policy.apply_gradients(gradients)
    return bool(steps)


def _same_on_all_ranks(worker: Any, batches: dict[str, SampleBatch]) -> PolicyBatches:
    if worker.learns_on_ranks:
        batches = dict(sorted(batches.items()))
        require_same(list(batches), "policies in the batch")
    return [(policy_id, require_policy(worker, policy_id), batch) for policy_id, batch in batches.items()]


def _by_policy(samples: Batch) -> dict[str, SampleBatch]:
    if not isinstance(samples, SampleBatch | MultiAgentBatch):
        raise TypeError(f"samples is of type {type(samples).__name__}; give a SampleBatch or a MultiAgentBatch")
    return samples.as_multi_agent().policy_batches


def join_ranks(
    policies: Mapping[str, Any], url: str, world_rank: int, world_size: int, backend: str, timeout_s: float
) -> None:
    """Join the other ranks, and give all policies the weights of rank 0; gradients are averaged from then on.

    Args:
        policies: by id.
        url: where the ranks meet, such as `tcp://host:port`.
        world_rank: 0 … `world_size` - 1.
        world_size: number of ranks.
        backend: "gloo" or "nccl".
        timeout_s: seconds after which a rank stops waiting for the others.

    Raises:
        RuntimeError: this process is in a group.
        ValueError: an argument out of range, a policy without a network in PyTorch, one whose device the backend
            cannot reach, or policies that differ from the other ranks'.
    """
    choice("gloo", "nccl")("backend", backend)
    positive_seconds("timeout_s", timeout_s)
    if not 0 <= world_rank < world_size:
        raise ValueError(f"world_rank={world_rank} must be one of 0 … world_size - 1, world_size is {world_size}")
    for policy_id, policy in policies.items():
        if not isinstance(policy, TorchPolicy):
            raise ValueError(f"policy {policy_id!r} is of type {type(policy).__name__}; TorchPolicy learns on ranks")  # noqa: TRY004
    if distributed.is_initialized():
        raise RuntimeError("in a torch.distributed group already: call teardown_torch_data_parallel() first")
    timeout = timedelta(seconds=timeout_s)
    distributed.init_process_group(backend, url, timeout, world_size, world_rank)
    set_timeout(timeout_s)
    try:
        states = {policy_id: policies[policy_id].model.state_dict() for policy_id in sorted(policies)}
        shapes = {policy_id: [*map(torch.Tensor.size, state.values())] for policy_id, state in states.items()}
        require_same(shapes, "policies")
        for policy_id, state in states.items():
            barrier()
            for tensor in state.values():
                distributed.broadcast(tensor, src=0)
            policies[policy_id].distributed_world_size = world_size
    except BaseException:
        leave_ranks(policies)
        raise


def leave_ranks(policies: Mapping[str, Any]) -> None:
    """Leave the group, so that these policies learn alone again."""
    for policy in policies.values():
        policy.distributed_world_size = 1
    if distributed.is_initialized():
        distributed.destroy_process_group()


def require_same(value: Any, name: str) -> None:
    """Raise `ValueError` on all ranks, which must call this together, unless all have the same value."""
    values = gather_objects(value)
    if any(other != values[0] for other in values):
        by_rank = "; ".join(f"rank {rank}: {other}" for rank, other in enumerate(values))
        raise ValueError(f"the ranks have different {name}, all of them stop: {by_rank}; make them equal")
