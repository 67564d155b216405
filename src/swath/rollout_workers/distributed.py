"""Workers that learn as one: ranks of a process group average the gradients of their policies.

```
join    compare policies ──▶ weights of rank 0 to all          any difference is an error on every rank, none waits
learn   compare policy ids of the batch ──▶ gradients of each ──▶ mean over ranks ──▶ the same step everywhere
```
A rank that raises on this way keeps the others waiting until the group's time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch import distributed

from swath.rollout_workers.config.checks import due, word
from swath.rollout_workers.policies.learning import gathered, meet, set_timeout
from swath.rollout_workers.policies.torch import TorchPolicy
from swath.rollout_workers.policy import Policy

_TWICE = (
    "this process is in a torch.distributed group already: call teardown_torch_data_parallel() first, and have one "
    "worker of a group per process"
)


def join(
    policies: Mapping[str, Policy], url: str, world_rank: int, world_size: int, backend: str, timeout_s: float
) -> None:
    """Meet the other ranks, and give all policies the weights that rank 0 has; gradients are averaged from now on.

    Args:
        policies: by id.
        url: where the ranks meet, such as `tcp://host:port`.
        world_rank: 0 … `world_size` - 1.
        world_size: how many ranks there are.
        backend: "gloo" or "nccl".
        timeout_s: after which a rank stops waiting for the others.

    Raises:
        RuntimeError: this process is in a group.
        ValueError: an argument out of range, a policy without a network in PyTorch, one whose device the backend
            cannot reach, or policies that are not those of the other ranks.
    """
    word("gloo", "nccl")("backend", backend)
    due("timeout_s", timeout_s)
    if not 0 <= world_rank < world_size:
        raise ValueError(f"world_rank={world_rank} must be one of 0 … world_size - 1, world_size is {world_size}")
    reachable = {policy_id: _reachable(backend, policy_id, policies[policy_id]) for policy_id in sorted(policies)}
    if distributed.is_initialized():
        raise RuntimeError(_TWICE)
    distributed.init_process_group(
        backend, init_method=url, rank=world_rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
    )
    set_timeout(timeout_s)
    try:
        require_same({policy_id: _shapes(policy) for policy_id, policy in reachable.items()}, "policies")
        for policy in reachable.values():
            meet()
            for tensor in policy.model.state_dict().values():
                distributed.broadcast(tensor, src=0)
            policy.distributed_world_size = world_size
    except BaseException:
        leave(policies)
        raise


def leave(policies: Mapping[str, Policy]) -> None:
    """Let these policies learn alone again, and leave the group."""
    for policy in policies.values():
        policy.distributed_world_size = 1
    if distributed.is_initialized():
        distributed.destroy_process_group()


def require_same(mine: Any, what: str) -> None:
    """Raise `ValueError` on all ranks, which must call this together, unless they all give the same."""
    everybodys = gathered(mine)
    if any(others != everybodys[0] for others in everybodys):
        given = "; ".join(f"rank {rank}: {others}" for rank, others in enumerate(everybodys))
        raise ValueError(f"the ranks have different {what}, none of them goes on: {given}")


def _reachable(backend: str, policy_id: str, policy: Policy) -> TorchPolicy:
    if not isinstance(policy, TorchPolicy):
        raise ValueError(  # noqa: TRY004  what may be given depends on the other policies, too
            f"policy {policy_id!r} is of type {type(policy).__name__}; gradients are averaged for a TorchPolicy only"
        )
    if backend == "nccl" and policy.device.type != "cuda":
        raise ValueError(f"backend='nccl' cannot reach policy {policy_id!r} on {policy.device}; use 'gloo'")
    return policy


def _shapes(policy: TorchPolicy) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in policy.model.state_dict().items()}
