"""What goes into a policy's network and comes out of it: observations, batches, weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from swath.rollout_workers.batches.leaves import as_array, as_tensor, leaves, tensor_of
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.metrics import LEARNER_STATS
from swath.rollout_workers.nests import map_nest

_WANTED = "dist_inputs or (dist_inputs, value)"
_WANTED_RECURRENT = "(dist_inputs, states) or (dist_inputs, value, states)"


class Outputs(NamedTuple):
    """What a network says of n rows.

    Attributes:
        dist_inputs: `[n, num_outputs]`.
        value: `[n]`; None if it has none.
        states: behind the rows, or behind each sequence; empty if it remembers nothing.
    """

    dist_inputs: Tensor
    value: Tensor | None
    states: list[Any]


def run(model: Callable[..., Any], obs: Any, states: Sequence[Any], seq_lens: Tensor | None) -> Outputs:
    """Call a network.

    Args:
        model: maps `obs` to `dist_inputs` or `(dist_inputs, value)`; one that remembers maps `(obs, states, seq_lens)`
            and gives its states as well.
        obs: `[n, …]`; with sequences, all of equal length, one behind another.
        states: before each sequence, `[sequences, …]`.
        seq_lens: rows of each sequence that are no padding; None for a network that does not remember.

    Raises:
        TypeError: it gave something else.
    """
    if seq_lens is None:
        answer = model(obs)
        if isinstance(answer, Tensor):
            return Outputs(answer, None, [])
        if isinstance(answer, tuple) and len(answer) == 2:
            return Outputs(answer[0], _flat(answer[1]), [])
    else:
        answer = model(obs, list(states), seq_lens)
        if isinstance(answer, tuple) and len(answer) in (2, 3):
            value = _flat(answer[1]) if len(answer) == 3 else None
            return Outputs(answer[0], value, list(answer[-1]))
    wanted = _WANTED if seq_lens is None else _WANTED_RECURRENT
    raise TypeError(f"{type(model).__name__} gave {type(answer).__name__}; it must give {wanted}")


def on(device: torch.device, nest: Any) -> Any:
    """Arrays as tensors on a device, in the same memory where that can be; float64 becomes float32."""
    if type(nest) is np.ndarray and device.type == "cpu" and nest.dtype == np.float32 and nest.flags.writeable:
        return torch.from_numpy(nest)
    return map_nest(lambda leaf: _tensor(leaf).to(device), nest)


def array(leaf: Any) -> np.ndarray[Any, Any]:
    """A copy of an array or tensor, as an array."""
    return np.array(as_array(leaf))


def twice(nest: Any) -> Any:
    """Two rows of what is not batched."""
    return map_nest(lambda leaf: np.stack([leaf, leaf]), nest)


def rows_of(nest: Any) -> int:
    """How many rows there are."""
    return len(next(leaf for _, leaf in leaves(nest)))


def arrays(nest: Any) -> Any:
    """Tensors as arrays."""
    if isinstance(nest, Tensor):
        return as_array(nest)
    return map_nest(as_array, nest)


def valid_mean(batch: SampleBatch) -> Callable[[Tensor], Tensor]:
    """The mean over the rows of a batch that are no padding."""
    if ColumnNames.SEQ_LENS not in batch or not batch.zero_padded:
        return torch.mean
    seq_lens, stride = batch[ColumnNames.SEQ_LENS], batch.max_seq_len
    assert stride is not None  # as it is where rows are padded
    valid = (torch.arange(stride, device=seq_lens.device) < seq_lens.unsqueeze(-1)).reshape(-1)
    return lambda values: values[valid].mean()


def _tensor(leaf: Any) -> Tensor:
    tensor = leaf if isinstance(leaf, Tensor) else as_tensor(np.asarray(leaf))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _flat(value: Tensor) -> Tensor:
    return value.squeeze(-1) if value.ndim == 2 else value


def weights_of(model: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of all parameters and persistent buffers by name, in dtypes that NumPy has: bfloat16 becomes float32."""
    return {name: np.array(as_array(tensor)) for name, tensor in model.state_dict().items()}


def plan_of_weights(model: nn.Module, weights: Mapping[str, Any]) -> Callable[[], None]:
    """Check weights; what copies them into the model, which then cannot fail.

    Args:
        model: gets them.
        weights: arrays or tensors by name.

    Raises:
        ValueError: names missing or unknown, or other shapes; the message lists them all.
    """
    held = model.state_dict()
    given = {name: tensor_of(value) for name, value in weights.items()}
    wrong = [*_names("missing", held.keys() - given.keys()), *_names("unknown", given.keys() - held.keys())]
    wrong += [
        f"{name} has shape {list(given[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in held.items()
        if name in given and given[name].shape != tensor.shape
    ]
    if wrong:
        raise ValueError(f"weights that do not fit, none was taken over: {'; '.join(wrong)}")

    def copy_in() -> None:
        with torch.no_grad():
            for name, tensor in held.items():
                tensor.copy_(given[name])

    return copy_in


def _names(what: str, names: set[str]) -> list[str]:
    return [f"{what} {', '.join(sorted(names))}"] if names else []


def to_train_on(samples: Mapping[str, Any], *, recurrent: bool) -> SampleBatch:
    """A batch with columns of its own, sequences padded to equal length; the given one stays as it is.

    Raises:
        ValueError: no rows, or no `seq_lens` for a policy that remembers.
    """
    batch = samples.copy(shallow=True) if isinstance(samples, SampleBatch) else SampleBatch(samples)
    if not batch.count:
        raise ValueError(f"there is nothing to learn from in {batch!r}; give a batch with rows")
    if recurrent and not batch.zero_padded:
        if ColumnNames.SEQ_LENS not in batch:
            raise ValueError(f"a policy that remembers learns from sequences, but {batch!r} has no 'seq_lens'")
        batch.right_zero_pad(int(batch[ColumnNames.SEQ_LENS].max()))
    return batch


def info_of(batch: SampleBatch, stats: dict[str, Any], told: dict[str, Any], updates: int) -> dict[str, Any]:
    """What is told of an update.

    Args:
        batch: learnt from.
        stats: of the loss.
        told: by callbacks.
        updates: of the policy in its life, with this one.
    """
    return {
        LEARNER_STATS: stats,
        "model": {},
        "custom_metrics": told,
        "num_agent_steps_trained": batch.count,
        "num_grad_updates_lifetime": updates,
        "diff_num_grad_updates_vs_sampler_policy": updates - 1 - (batch.num_grad_updates or 0),
    }


def as_numbers(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars as Python's numbers, larger tensors as arrays."""
    return {name: _as_number(value) for name, value in stats.items()}


def _as_number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = as_array(value)
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.ndim == 0 else value
