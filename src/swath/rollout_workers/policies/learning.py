"""How policies learn: ranks that wait for each other, gradients, and several passes over a batch in minibatches.

parameters ──loss──▶ gradients ──mean over ranks──▶ ──bound──▶ arrays that travel ──▶ an optimiser's step
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
from swath.rollout_workers.nests import tensor_of
from swath.rollout_workers.policy import Policy

# That of the group which this process is in.
_timeout = [timedelta(seconds=300)]


def set_timeout(seconds: float) -> None:
    """Let ranks of this process's group wait that long for each other."""
    _timeout[0] = timedelta(seconds=seconds)


def barrier() -> None:
    """Wait until all ranks have come here, as all must together; a group on NCCL waits in its own calls.

    Raises:
        WorkerLate: some have not come in the group's time; the message says which.
    """
    if distributed.get_backend() != "gloo":
        return
    try:
        distributed.monitored_barrier(timeout=_timeout[0], wait_all_ranks=True)
    except RuntimeError as error:
        way_out = "call teardown_torch_data_parallel() on all, then setup_torch_data_parallel() again"
        raise WorkerLate(f"ranks that learn as one have not all come in time: {error}; {way_out}") from error


def gather_objects(mine: Any) -> list[Any]:
    """What each rank gives, by rank; all must call this together.

    Raises:
        WorkerLate: some have not come in time.
    """
    barrier()
    everybodys: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everybodys, mine)
    return everybodys


def fitting(model: nn.Module, weights: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Each tensor of a model with the one to copy into it, of weights that are arrays or tensors by name.

    Raises:
        ValueError: names missing or unknown, or other shapes; the message lists them all.
    """
    held, given = model.state_dict(), {name: tensor_of(value) for name, value in weights.items()}
    needed, there = ({name: tuple(each.shape) for name, each in of.items()} for of in (held, given))
    differ = {name for name in {**needed, **there} if there.get(name) != needed.get(name)}
    if differ:
        wrong = "; ".join(f"{name} is {there.get(name)}, wanted {needed.get(name)}" for name in sorted(differ))
        raise ValueError(f"weights of shapes that do not fit, none was taken over: {wrong}")
    return [(own, given[name]) for name, own in held.items()]


def to_train_on(samples: Mapping[str, Any], policy: Policy) -> SampleBatch:
    """A batch with columns of its own, sequences padded to equal length; the given one stays as it is.

    Raises:
        ValueError: no rows, or no `seq_lens` for a policy that remembers.
    """
    batch = samples.copy(shallow=True) if isinstance(samples, SampleBatch) else SampleBatch(samples)
    if not batch.count:
        raise ValueError(f"there is nothing to learn from in {batch!r}; give a batch with rows")
    if ColumnNames.SEQ_LENS not in batch and policy.is_recurrent():
        raise ValueError(f"a policy that remembers learns from sequences, but {batch!r} has no 'seq_lens'")
    if ColumnNames.SEQ_LENS in batch and not batch.zero_padded:
        batch.right_zero_pad(int(batch[ColumnNames.SEQ_LENS].max()))
    return batch


def scheduled(schedule: Sequence[Sequence[float]] | None, constant: float, step: int) -> float:
    """The value at a step, on straight lines between the `[step, value]` of a schedule, the last one beyond its end.

    Args:
        schedule: with growing steps; None: `constant` always.
        constant: likewise.
        step: the global one.
    """
    if schedule is None:
        return constant
    steps, values = zip(*schedule, strict=True)
    return float(np.interp(step, steps, values))


def bound(parameters: Sequence[nn.Parameter], limit: float | None, by: str) -> float:
    """Bring the gradients of parameters within a limit, in place; returns the norm of all of them before.

    Args:
        parameters: with gradients, some at least.
        limit: None: none.
        by: "global_norm" shortens all together to this norm, "norm" each to it, "value" clips each number.

    Raises:
        FloatingPointError: one is NaN or infinite.
    """
    together = limit if limit is not None and by == "global_norm" else inf
    norm = float(nn.utils.clip_grad_norm_(parameters, together))
    if not isfinite(norm):
        raise FloatingPointError(f"the gradients' norm is {norm}, the weights were left as they are; {_LOOK}")
    if limit is not None and by == "value":
        nn.utils.clip_grad_value_(parameters, limit)
    if limit is not None and by == "norm":
        for parameter in parameters:
            nn.utils.clip_grad_norm_(parameter, limit)
    return norm


_LOOK = "look for rewards and observations that are not finite, or lower lr"


def average(parameters: Sequence[nn.Parameter]) -> None:
    """Average the gradients of parameters over all ranks, which must call this together; zeros where one has none.

    Raises:
        WorkerLate: other ranks have not come in time.
    """
    learnt = [parameter for parameter in parameters if parameter.requires_grad]
    found = [torch.zeros_like(each) if each.grad is None else each.grad for each in learnt]
    flat = torch.cat([gradient.reshape(-1) for gradient in found])
    barrier()
    distributed.all_reduce(flat)
    means = torch.split(flat / distributed.get_world_size(), [gradient.numel() for gradient in found])
    for parameter, mean in zip(learnt, means, strict=True):
        parameter.grad = mean.to(parameter).reshape(parameter.shape)


def fitted(gradients: Iterable[Any], parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """Gradients as they came from elsewhere, as tensors where the parameters are.

    Raises:
        ValueError: another number of them, or another shape.
        FloatingPointError: one is NaN or infinite.
    """
    given = [None if gradient is None else tensor_of(gradient) for gradient in gradients]
    if len(given) != len(parameters):
        raise ValueError(f"{len(given)} gradients for {len(parameters)} parameters; give one each, None where none is")
    for i, (gradient, parameter) in enumerate(zip(given, parameters, strict=True)):
        if gradient is not None and gradient.shape != parameter.shape:
            raise ValueError(f"gradient {i} has shape {list(gradient.shape)}, its parameter {list(parameter.shape)}")
        if gradient is not None and not gradient.isfinite().all():
            raise FloatingPointError(f"gradient {i} is not finite, the weights were left as they are; {_LOOK}")
        given[i] = None if gradient is None else gradient.to(parameter)
    return given


def learn_in_passes(
    policy: Policy,
    batch: SampleBatch,
    epochs: int,
    size: int | None = None,
    fields: Sequence[str] = (),
) -> dict[str, Any]:
    """Let a policy learn from minibatches of a batch, which is left as it is.

    Args:
        policy: learns.
        batch: of this policy.
        epochs: how often each row is used.
        size: rows of a minibatch, the last may be shorter; None: all rows at once.
        fields: columns that are brought to mean 0 and std 1 first.

    Returns:
        The mean of what the updates of the last epoch reported.

    Raises:
        KeyError: a column to standardise is not there.
        WorkerLate: another rank has not come in time, where several learn as one.
    """
    rows, infos = batch.copy(shallow=True), []
    for field in fields:
        rows[field] = standardized(rows[field])
    rows = to_train_on(rows, policy)
    for _ in range(epochs):
        infos = [policy.learn_on_batch(part) for part in _parts(policy, rows, size)]
    return dict(_mean(infos))


def standardized(column: Any) -> np.ndarray[Any, Any]:
    """A column with mean 0 and std 1, or less where the std is below 1e-4."""
    values = np.asarray(column)
    made: np.ndarray[Any, Any] = (values - values.mean()) / max(1e-4, values.std())
    return made.astype(values.dtype if np.issubdtype(values.dtype, np.floating) else np.float32)


def _parts(policy: Policy, rows: SampleBatch, size: int | None) -> list[SampleBatch]:
    """Minibatches, as many as every rank has: where their gradients are averaged, one that had more would wait."""
    parts = [rows] if size is None or size >= rows.count else rows.shuffle().timeslices(size)
    if policy.distributed_world_size == 1:
        return parts
    groups = np.array_split(np.arange(len(parts)), min(gather_objects(len(parts))))
    return [concat(parts[i] for i in group) for group in groups]


def _mean(infos: Sequence[Any]) -> Any:
    """Dicts by key, numbers as their mean, the last of what is neither."""
    if all(isinstance(info, dict) for info in infos):
        keys = {key: None for info in infos for key in info}
        return {key: _mean([info[key] for info in infos if key in info]) for key in keys}
    if all(isinstance(info, Real | np.ndarray) for info in infos):
        mean = np.mean(np.asarray(infos), axis=0)
        return float(mean) if mean.ndim == 0 else mean
    return infos[-1]
