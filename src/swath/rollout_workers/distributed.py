"""Workers that learn as one: ranks of a process group average the gradients of their policies.

```
join    compare policies ──▶ weights of rank 0 to all          any difference is an error on every rank, none waits
learn   compare policy ids of the batch ──▶ gradients of each ──▶ mean over ranks ──▶ the same step everywhere
```
What raises on one rank on this way is told to the others, so that all raise and all can go on. Who waits in vain says
for whom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from torch import distributed
from torch.distributed.rendezvous import rendezvous

from swath.rollout_workers.config.checks import due, word
from swath.rollout_workers.policies import roll_call
from swath.rollout_workers.policies.exchange import exchanged, gathered
from swath.rollout_workers.policies.torch import TorchPolicy
from swath.rollout_workers.policy import Policy

T = TypeVar("T")

_TWICE = (
    "this process is in a torch.distributed group already: call teardown_torch_data_parallel() first, and have one "
    "worker of a group per process"
)


@dataclass(frozen=True)
class Place:
    """A rank's place in a group.

    Attributes:
        url: where the ranks meet, such as `tcp://host:port`.
        rank: 0 … size - 1.
        size: how many ranks there are.
        backend: "gloo" or "nccl".
        timeout_s: after which a rank stops waiting for the others, and says for whom it waits.

    Raises:
        ValueError: one of them is out of range.
    """

    url: str
    rank: int
    size: int
    backend: str
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        word("gloo", "nccl")("backend", self.backend)
        due("timeout_s", self.timeout_s)
        if not 0 <= self.rank < self.size:
            raise ValueError(f"world_rank={self.rank} must be one of 0 … world_size - 1, world_size is {self.size}")


class Ranks:
    """This process in a group of ranks, from `join` to `leave`."""

    def __init__(self) -> None:
        self._policies: list[TorchPolicy] = []

    @classmethod
    def join(cls, place: Place, policies: Mapping[str, Policy]) -> Ranks:
        """Meet the other ranks, and give all policies the weights that rank 0 has.

        Raises:
            RuntimeError: this process is in a group.
            ValueError: a policy without a network in PyTorch, one whose device the backend cannot reach, or policies
                that are not those of the other ranks.
        """
        _require_reachable(place.backend, policies)
        if distributed.is_initialized():
            raise RuntimeError(_TWICE)
        timeout = timedelta(seconds=place.timeout_s)
        store, _, _ = next(rendezvous(place.url, place.rank, place.size, timeout=timeout))
        distributed.init_process_group(
            place.backend, store=store, rank=place.rank, world_size=place.size, timeout=timeout
        )
        roll_call.begin(roll_call.RollCall(store, place.rank, place.size, place.timeout_s))
        ranks = cls()
        try:
            ranks.include(policies)
        except BaseException:
            ranks.leave()
            raise
        return ranks

    def include(self, policies: Mapping[str, Policy]) -> None:
        """Give these policies the weights that rank 0 has; from now on their gradients are averaged. All ranks must.

        Raises:
            ValueError: they are not those of the other ranks.
        """
        backend = distributed.get_backend()
        torch_policies = _require_reachable(backend, policies)
        shapes = {policy_id: _shapes(policy) for policy_id, policy in torch_policies.items()}
        _require_same(gathered(shapes), "policies")
        for _, policy in sorted(torch_policies.items()):
            with roll_call.present():
                for tensor in policy.model.state_dict().values():
                    distributed.broadcast(tensor, src=0)
            policy.distributed_world_size = distributed.get_world_size()
            self._policies.append(policy)

    def require_same(self, by_policy: Callable[[], Mapping[str, T]]) -> dict[str, T]:
        """What this gives by policy id, sorted: the order in which all ranks must learn.

        Raises:
            Exception: what it raised, once the other ranks know.
            RemoteFailure: it raised on another rank.
            ValueError: the other ranks have others.
        """
        mine, everybodys = exchanged(lambda: dict(sorted(by_policy().items())), list)
        _require_same(everybodys, "policies in the batch")
        return mine

    def together(self, make: Callable[[], T]) -> T:
        """What this gives, once all ranks have the like of it.

        Raises:
            Exception: what it raised, once the other ranks know.
            RemoteFailure: it raised on another rank.
            WorkerLate: other ranks have not come in time.
        """
        mine, _ = exchanged(make, lambda _: None)
        return mine

    def leave(self) -> None:
        """Learn alone again; a no-op the second time."""
        for policy in self._policies:
            policy.distributed_world_size = 1
        self._policies = []
        if distributed.is_initialized():
            distributed.destroy_process_group()
        roll_call.end()


def _require_reachable(backend: str, policies: Mapping[str, Policy]) -> dict[str, TorchPolicy]:
    found = {}
    for policy_id, policy in policies.items():
        if not isinstance(policy, TorchPolicy):
            raise ValueError(  # noqa: TRY004  what may be given depends on the other policies, too
                f"policy {policy_id!r} is of type {type(policy).__name__}; only TorchPolicy gradients are averaged"
            )
        if backend == "nccl" and policy.device.type != "cuda":
            raise ValueError(f"backend='nccl' cannot reach policy {policy_id!r} on {policy.device}; use 'gloo'")
        found[policy_id] = policy
    return found


def _shapes(policy: TorchPolicy) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in policy.model.state_dict().items()}


def _require_same(everybodys: Sequence[Any], what: str) -> None:
    if any(others != everybodys[0] for others in everybodys):
        told = "; ".join(f"rank {rank}: {_short(others)}" for rank, others in enumerate(everybodys))
        raise ValueError(f"the ranks have different {what}, none of them goes on: {told}")


def _short(what: Any) -> str:
    text = repr(what)
    return text if len(text) <= 300 else f"{text[:297]}…"
