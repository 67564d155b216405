"""What goes into a policy's network, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from swath.rollout_workers.batches.leaves import array_of, as_array, as_tensor, leaves
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
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
        return array_of(nest)
    return map_nest(array_of, nest)


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
