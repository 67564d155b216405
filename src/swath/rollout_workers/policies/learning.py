"""Learning of policies: synchronised ranks, gradients, and passes over a batch in minibatches.

parameters ──loss──▶ gradients ──mean over ranks──▶ ──clip──▶ an optimiser's step

ranks join     compare policies ──▶ weights of rank 0 to all          any difference is an error on every rank
ranks learn    compare policy ids of the batch ──▶ gradients of each ──▶ mean over ranks ──▶ the same step everywhere

While a rank raises in between, the others wait until the group's timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from math import inf, isfinite
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from swath.errors import WorkerLate
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch, concat
from swath.rollout_workers.config.checks import choice, positive_seconds
from swath.rollout_workers.nests import tensor_of
from swath.rollout_workers.policy import Policy

# The timeout of this process's group.
_timeout = [timedelta(seconds=300)]


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
        if not isinstance(getattr(policy, "model", None), nn.Module):
            raise ValueError(f"policy {policy_id!r} is of type {type(policy).__name__}; TorchPolicy learns on ranks")  # noqa: TRY004
    if distributed.is_initialized():
        raise RuntimeError("in a torch.distributed group already: call teardown_torch_data_parallel() first")
    _timeout[0] = timedelta(seconds=timeout_s)
    distributed.init_process_group(backend, url, _timeout[0], world_size, world_rank)
    try:
        states = {policy_id: policies[policy_id].model.state_dict() for policy_id in sorted(policies)}
        shapes = {policy_id: [*map(Tensor.size, state.values())] for policy_id, state in states.items()}
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


def barrier() -> None:
    """Wait until all ranks have called this, as all must together; a group on NCCL waits in its own calls.

    Raises:
        WorkerLate: some have not come in the group's time; the message says which.
    """
    if distributed.get_backend() != "gloo":
        return
    try:
        distributed.monitored_barrier(timeout=_timeout[0], wait_all_ranks=True)
    except RuntimeError as error:
        advice = "call teardown_torch_data_parallel() on all, then setup_torch_data_parallel() again"
        raise WorkerLate(f"ranks that learn as one have not all come in time: {error}; {advice}") from error


def gather_objects(value: Any) -> list[Any]:
    """Return the objects of all ranks, by rank; all must call this together.

    Raises:
        WorkerLate: some have not come in time.
    """
    barrier()
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def match_weights(model: nn.Module, weights: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Return each tensor of a model with the tensor to copy into it, from weights that are arrays or tensors by name.

    Raises:
        ValueError: names missing or unknown, or other shapes; the message lists them all.
    """
    targets, sources = model.state_dict(), {name: tensor_of(value) for name, value in weights.items()}
    expected = {name: tuple(tensor.shape) for name, tensor in targets.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in sources.items()}
    differ = {name for name in {**expected, **shapes} if shapes.get(name) != expected.get(name)}
    if differ:
        wrong = "; ".join(f"{name} is {shapes.get(name)}, wanted {expected.get(name)}" for name in sorted(differ))
        raise ValueError(f"weights of shapes that do not fit, none was changed: {wrong}")
    return [(target, sources[name]) for name, target in targets.items()]


def training_batch(samples: Mapping[str, Any], policy: Policy) -> SampleBatch:
    """Return a batch with its own columns, sequences padded to equal length; the argument stays unchanged.

    Raises:
        ValueError: no rows, or no `seq_lens` for a recurrent policy.
    """
    batch = samples.copy(shallow=True) if isinstance(samples, SampleBatch) else SampleBatch(samples)
    if not batch.count:
        raise ValueError(f"{batch!r} has no rows to learn from; give a batch with rows")
    if ColumnNames.SEQ_LENS not in batch and policy.is_recurrent():
        raise ValueError(f"a recurrent policy learns from sequences, but {batch!r} has no 'seq_lens'; add them")
    if ColumnNames.SEQ_LENS in batch and not batch.zero_padded:
        batch.right_zero_pad(int(batch[ColumnNames.SEQ_LENS].max()))
    return batch


def interpolate(schedule: Sequence[Sequence[float]] | None, constant: float, step: int) -> float:
    """Interpolate between the `[step, value]` of a schedule, and keep the last value beyond its end.

    Args:
        schedule: with growing steps; None: `constant` always.
        constant: the value without a schedule.
        step: the global one.
    """
    if schedule is None:
        return constant
    steps, values = zip(*schedule, strict=True)
    return float(np.interp(step, steps, values))


def clip_gradients(parameters: Sequence[nn.Parameter], limit: float | None, by: str) -> float:
    """Clip the gradients of parameters in place; return the norm of all of them before.

    Args:
        parameters: with gradients, some at least.
        limit: None: none.
        by: "global_norm" shortens all together to this norm, "norm" each to it, "value" clips each number.

    Raises:
        FloatingPointError: one is NaN or infinite.
    """
    norm_limit = limit if limit is not None and by == "global_norm" else inf
    norm = float(nn.utils.clip_grad_norm_(parameters, norm_limit))
    if not isfinite(norm):
        raise FloatingPointError(f"the gradients' norm is {norm}, the weights were left as they are; {_LOOK}")
    if limit is not None and by == "value":
        nn.utils.clip_grad_value_(parameters, limit)
    if limit is not None and by == "norm":
        for parameter in parameters:
            nn.utils.clip_grad_norm_(parameter, limit)
    return norm


_LOOK = "look for rewards and observations that are not finite, or lower lr"


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Average the gradients of parameters over all ranks, which must call this together; zeros where one has none.

    Raises:
        WorkerLate: other ranks have not come in time.
    """
    trained_parameters = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained_parameters]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    barrier()
    distributed.all_reduce(flat)
    means = torch.split(flat / distributed.get_world_size(), [gradient.numel() for gradient in gradients])
    for parameter, mean in zip(trained_parameters, means, strict=True):
        parameter.grad = mean.to(parameter).reshape(parameter.shape)


def fit_gradients(gradients: Iterable[Any], parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """Return gradients as tensors where the parameters are, after a check that they fit.

    Raises:
        ValueError: another number of them, or another shape.
        FloatingPointError: one is NaN or infinite.
    """
    tensors = [None if gradient is None else tensor_of(gradient) for gradient in gradients]
    if len(tensors) != len(parameters):
        n = len(tensors)
        raise ValueError(f"{n} gradients for {len(parameters)} parameters; give one each, None where there is none")
    for i, (gradient, parameter) in enumerate(zip(tensors, parameters, strict=True)):
        if gradient is not None and gradient.shape != parameter.shape:
            raise ValueError(f"gradient {i} has shape {list(gradient.shape)}, its parameter {list(parameter.shape)}")
        if gradient is not None and not gradient.isfinite().all():
            raise FloatingPointError(f"gradient {i} is not finite, the weights were left as they are; {_LOOK}")
        tensors[i] = None if gradient is None else gradient.to(parameter)
    return tensors


def learn_in_passes(
    policy: Policy, batch: SampleBatch, epochs: int, size: int | None = None, fields: Sequence[str] = ()
) -> dict[str, Any]:
    """Update a policy with minibatches of a batch, which stays unchanged.

    Args:
        policy: to update.
        batch: of this policy.
        epochs: how often each row is used.
        size: rows of a minibatch, the last may be shorter; None: all rows at once.
        fields: columns that are scaled to mean 0 and std 1 first.

    Returns:
        The mean of what the updates of the last epoch reported.

    Raises:
        KeyError: a column to standardise is not there.
        WorkerLate: another rank has not come in time, where several learn as one.
    """
    rows, infos = batch.copy(shallow=True), []
    for field in fields:
        rows[field] = standardized(rows[field])
    rows = training_batch(rows, policy)
    for _ in range(epochs):
        infos = [policy.learn_on_batch(part) for part in _minibatches(policy, rows, size)]
    return dict(_mean_info(infos))


def standardized(column: Any) -> np.ndarray[Any, Any]:
    """Scale a column to mean 0 and std 1, or less where the std is below 1e-4."""
    values = np.asarray(column)
    scaled: np.ndarray[Any, Any] = (values - values.mean()) / max(1e-4, values.std())
    return scaled.astype(values.dtype if np.issubdtype(values.dtype, np.floating) else np.float32)


def _minibatches(policy: Policy, rows: SampleBatch, size: int | None) -> list[SampleBatch]:
    """Return minibatches, the same number on every rank: a rank with more would wait for the others' gradients."""
    parts = [rows] if size is None or size >= rows.count else rows.shuffle().timeslices(size)
    if policy.distributed_world_size == 1:
        return parts
    groups = np.array_split(np.arange(len(parts)), min(gather_objects(len(parts))))
    return [concat(parts[i] for i in group) for group in groups]


def _mean_info(infos: Sequence[Any]) -> Any:
    """Average infos: dicts by key, numbers by their mean; return the last of any other values."""
    if all(isinstance(info, dict) for info in infos):
        keys = {key: None for info in infos for key in info}
        return {key: _mean_info([info[key] for info in infos if key in info]) for key in keys}
    if all(isinstance(info, Real | np.ndarray) for info in infos):
        mean = np.mean(np.asarray(infos), axis=0)
        return float(mean) if mean.ndim == 0 else mean
    return infos[-1]
