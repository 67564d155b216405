"""What a worker does to let its policies learn, alone or as one of several ranks.

```
join    compare policies ──▶ weights of rank 0 to all          any difference is an error on every rank, none waits
learn   compare policy ids of the batch ──▶ gradients of each ──▶ mean over ranks ──▶ the same step everywhere
```
A rank that raises on this way keeps the others waiting until the group's time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed

from swath.options import count
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch, SampleBatch
from swath.rollout_workers.config.checks import due, word
from swath.rollout_workers.policies.learning import gathered, learn_in_passes, meet, set_timeout
from swath.rollout_workers.policies.torch import TorchPolicy
from swath.rollout_workers.worker.policies import PolicyMethods

Batch = SampleBatch | MultiAgentBatch


class LearningMethods(PolicyMethods):
    """Updates of a worker's policies."""

    sample: Callable[..., Batch]

    def learn_on_batch(self, samples: Batch) -> dict[str, Any]:
        """One update of each policy that learns and has rows in the batch, which stays as it is.

        Returns:
            What each reports, by policy id.

        Raises:
            WorkerLate: another of the ranks that learn as one has not come in time.
            Exception: what a policy's loss or a callback raised.
        """
        return self._update(samples, lambda policy, batch: policy.learn_on_batch(batch))

    def sample_and_learn(
        self,
        expected_batch_size: int,
        num_sgd_iter: int | None = None,
        sgd_minibatch_size: int | None = None,
        standardize_fields: Sequence[str] = (),
    ) -> tuple[dict[str, Any], int]:
        """Sample once, and let each policy that learns go through its rows in shuffled minibatches.

        Args:
            expected_batch_size: env steps that the batch must be from.
            num_sgd_iter: passes; None: `config.num_epochs`.
            sgd_minibatch_size: rows of an update, the last one of a pass may have fewer; None:
                `config.minibatch_size`; 0: all rows.
            standardize_fields: columns that are brought to mean 0 and standard deviation 1 first, in a copy.

        Returns:
            By policy id the mean of what its updates of the last pass reported; and the env steps.

        Raises:
            AssertionError: the batch is from another number of env steps.
            WorkerLate: another of the ranks that learn as one has not come in time.
            Exception: what `sample` or learning raised.
        """
        epochs = count("num_sgd_iter", self.config.num_epochs if num_sgd_iter is None else num_sgd_iter)
        given = self.config.minibatch_size if sgd_minibatch_size is None else sgd_minibatch_size
        size = None if given is None else count("sgd_minibatch_size", given, least=0) or None
        batch = self.sample()
        steps = batch.env_steps()
        if steps != expected_batch_size:
            raise AssertionError(f"expected_batch_size={expected_batch_size}, but the batch is from {steps} env steps")
        learn = partial(learn_in_passes, epochs=epochs, size=size, fields=standardize_fields)
        return self._update(batch, learn), steps

    def compute_gradients(self, samples: Batch, single_agent: bool | None = None) -> tuple[Any, dict[str, Any]]:
        """Gradients of the policies that learn; weights stay.

        Args:
            samples: the batch.
            single_agent: answer with the gradients and the info of `"default_policy"` alone.

        Returns:
            Gradients by policy id, and infos with the `batch_count`.

        Raises:
            ValueError: `single_agent`, but the batch is of other policies.
        """
        found = _by_policy(samples)
        if single_agent and set(found) != {DEFAULT_POLICY_ID}:
            raise ValueError(f"single_agent=True is for a batch of {DEFAULT_POLICY_ID!r}, not of {sorted(found)}")
        with self._working():
            chosen = self._agreed(found) if single_agent else self._chosen(samples)
            made = {policy_id: policy.compute_gradients(batch) for policy_id, policy, batch in chosen}
        if single_agent:
            gradients, info = made[DEFAULT_POLICY_ID]
            return gradients, info
        infos = {policy_id: info for policy_id, (_, info) in made.items()}
        return {policy_id: grads for policy_id, (grads, _) in made.items()}, {**infos, "batch_count": samples.count}

    def apply_gradients(self, grads: Any) -> None:
        """One step by gradients: by policy id, or those of `"default_policy"`; policies that do not learn stay.

        Raises:
            KeyError: an unknown id.
            ValueError: gradients that do not fit; nothing is applied.
            FloatingPointError: gradients that are not finite; nothing is applied.
        """
        given = grads if isinstance(grads, Mapping) else {DEFAULT_POLICY_ID: grads}
        policies = {policy_id: self._policy(policy_id) for policy_id in given}
        steps = [(policies[policy_id], list(found)) for policy_id, found in given.items() if self._learns(policy_id)]
        with self._working():
            for policy, own in steps:
                policy.check_gradients(own)
            for policy, own in steps:
                policy.apply_gradients(own)
            if steps:
                self._changed()

    def setup_torch_data_parallel(
        self, url: str, world_rank: int, world_size: int, backend: str, *, timeout_s: float = 300.0
    ) -> None:
        """Be one of several ranks, who begin with the weights of rank 0 and average their gradients from then on.

        If one rank raises while it samples or learns, the others wait for it until `timeout_s` is over.

        Args:
            url: where they meet, such as `tcp://host:port`.
            world_rank: 0 … `world_size` - 1.
            world_size: how many they are.
            backend: "gloo" or "nccl".
            timeout_s: how long one waits for the others, here and whenever they learn; then it raises `WorkerLate`,
                whose message names them, and the group has to be set up anew.

        Raises:
            RuntimeError: it is one already.
            ValueError: an argument out of range, a policy that is not torch, or others than those of the other ranks.
        """
        with self._working():
            join_ranks(self.policy_map, url, world_rank, world_size, backend, timeout_s)
        self._on_ranks = True
        self._changed()

    def teardown_torch_data_parallel(self) -> None:
        """Learn alone again; nothing happens if it does."""
        if self._on_ranks:
            leave_ranks(self.policy_map)
            self._on_ranks = False

    def _update(self, samples: Batch, update: Callable[[Any, SampleBatch], Any]) -> dict[str, Any]:
        """What `update(policy, batch)` reports of each policy that learns; the version grows also if one raises."""
        with self._working():
            chosen = self._chosen(samples)
            try:
                return {policy_id: update(policy, batch) for policy_id, policy, batch in chosen}
            finally:
                if chosen:
                    self._changed()

    def _chosen(self, samples: Batch) -> list[tuple[str, Any, SampleBatch]]:
        """Policies that learn, and their batches, by id."""
        found = _by_policy(samples).items()
        return self._agreed({i: batch for i, batch in found if i in self.policy_map and self._learns(i, samples)})

    def _agreed(self, batches: dict[str, SampleBatch]) -> list[tuple[str, Any, SampleBatch]]:
        """Policies and their batches, in the same order on all ranks."""
        if self._on_ranks:
            batches = dict(sorted(batches.items()))
            require_same(list(batches), "policies in the batch")
        return [(policy_id, self._policy(policy_id), batch) for policy_id, batch in batches.items()]


def _by_policy(samples: Batch) -> dict[str, SampleBatch]:
    if not isinstance(samples, SampleBatch | MultiAgentBatch):
        raise TypeError(f"samples is of type {type(samples).__name__}; give a SampleBatch or a MultiAgentBatch")
    return samples.as_multi_agent().policy_batches


def join_ranks(
    policies: Mapping[str, Any], url: str, world_rank: int, world_size: int, backend: str, timeout_s: float
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
            meet()
            for tensor in state.values():
                distributed.broadcast(tensor, src=0)
            policies[policy_id].distributed_world_size = world_size
    except BaseException:
        leave_ranks(policies)
        raise


def leave_ranks(policies: Mapping[str, Any]) -> None:
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
