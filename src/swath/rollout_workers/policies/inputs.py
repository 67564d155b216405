"""What goes into a policy's network and comes out of it: observations, batches, weights; and what settings say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.nests import map_nest, tensor_of


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


def run(model: Callable[..., Any], obs: Any, states: Sequence[Any] = (), seq_lens: Tensor | None = None) -> Outputs:
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
    remembers = seq_lens is not None
    answer = model(obs, list(states), seq_lens) if remembers else model(obs)
    parts = answer if isinstance(answer, tuple) else (answer,)
    *given, after = parts if remembers else (*parts, ())
    if len(given) not in (1, 2) or not isinstance(given[0], Tensor):
        wanted = "dist_inputs or (dist_inputs, value)" + (", with the states as the last part" if remembers else "")
        raise TypeError(f"{type(model).__name__} gave {type(answer).__name__}; it must give {wanted}")
    value = given[1] if len(given) == 2 else None
    return Outputs(given[0], value.squeeze(-1) if value is not None and value.ndim == 2 else value, list(after))


def on(device: torch.device, nest: Any) -> Any:
    """Arrays as tensors on a device, in the same memory where that can be; float64 becomes float32."""
    if type(nest) is np.ndarray and device.type == "cpu" and nest.dtype == np.float32 and nest.flags.writeable:
        return torch.from_numpy(nest)

    def tensor(leaf: Any) -> Tensor:
        made = tensor_of(leaf)
        return (made.float() if made.dtype == torch.float64 else made).to(device)

    return map_nest(tensor, nest)


def fitting(model: nn.Module, weights: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """Each tensor of a model with the one to copy into it, of weights that are arrays or tensors by name.

    Raises:
        ValueError: names missing or unknown, or other shapes; the message lists them all.
    """
    held, given = model.state_dict(), {name: tensor_of(value) for name, value in weights.items()}
    pairs = (("missing", held.keys() - given.keys()), ("unknown", given.keys() - held.keys()))
    wrong = [f"{what} {', '.join(sorted(names))}" for what, names in pairs if names]
    wrong += [
        f"{name} has shape {list(given[name].shape)} instead of {list(own.shape)}"
        for name, own in held.items()
        if name in given and given[name].shape != own.shape
    ]
    if wrong:
        raise ValueError(f"weights that do not fit, none was taken over: {'; '.join(wrong)}")
    return [(own, given[name]) for name, own in held.items()]


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


def device_of(config: Mapping[str, Any]) -> torch.device:
    """Where a worker's policies are.

    Raises:
        RuntimeError: a GPU is asked for, and there is none.
    """
    setting = "num_gpus_per_env_runner" if config.get("worker_index", 0) else "num_gpus"
    gpus = config.get(setting, 0)
    if not gpus or config.get("_fake_gpus", False):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(f"{setting}={gpus!r}, but torch sees no CUDA device here; set it to 0, or _fake_gpus=True")
    return torch.device("cuda", torch.cuda.current_device())


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
