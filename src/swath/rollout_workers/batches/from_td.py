"""Columns of a TensorDict, in the same memory."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NonTensorData, TensorDictBase, is_non_tensor

from swath.keys import LOG_PROB, MASK, Key, as_tuple
from swath.rollout_workers.batches.leaves import is_array, object_array
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.td_names import FLAGS_BEFORE, KEYS, LONE_NUMBERS

Nest = dict[str, Any]


def columns_of(td: TensorDictBase) -> dict[str, Any]:
    """The entries of a TensorDict `[n]`, or `[B, T]`, whose rows are then by env, as columns.

    Numbers stay where they are if they are in the host's memory, else columns are tensors. Frames that a mask leaves
    out are left out, and the root flags of the step before. Nested entries `"0"`, `"1"`, … become a tuple.

    Raises:
        ValueError: a batch size of another kind.
    """
    if td.ndim not in (1, 2):
        raise ValueError(f"batch size {list(td.batch_size)} must be [n] or [B, T]; reshape the TensorDict")
    flat = _valid(td.reshape(-1) if td.ndim == 2 else td)
    tree = {name: _opened(entry) for name, entry in flat.items() if name not in FLAGS_BEFORE}
    found = {name: _popped(tree, key) for name, key in KEYS.items()}
    if found[ColumnNames.ACTION_LOGP] is None:
        found[ColumnNames.ACTION_LOGP] = _popped(tree, LOG_PROB)
    _settle_flags(found)
    rest = {name: entry for name, entry in tree.items() if not isinstance(entry, dict) or entry}
    return {name: _column(name, entry) for name, entry in {**found, **rest}.items() if entry is not None}


def _valid(td: TensorDictBase) -> TensorDictBase:
    mask = td.get(MASK, None)
    if mask is None:
        return td
    valid = td if bool(mask.all()) else td[mask.reshape(-1)]
    return valid.exclude(MASK)


def _opened(entry: Any) -> Any:
    """An entry, with nested TensorDicts as dicts."""
    if is_non_tensor(entry) or not isinstance(entry, TensorDictBase):
        return entry
    return {name: _opened(part) for name, part in entry.items()}


def _popped(tree: Nest, key: Key) -> Any:
    *parents, name = as_tuple(key)
    for parent in parents:
        tree = tree.get(parent, {})
    return tree.pop(name, None)


def _settle_flags(found: Nest) -> None:
    """Dones are computed; where nothing says how episodes ended, they say that."""
    dones = found.pop(ColumnNames.DONES)
    if dones is not None and found[ColumnNames.TERMINATEDS] is None:
        truncated = found[ColumnNames.TRUNCATEDS]
        found[ColumnNames.TERMINATEDS] = dones if truncated is None else dones & ~truncated


def _column(name: str, entry: Any) -> Any:
    if isinstance(entry, dict):
        parts = {key: _column(name, part) for key, part in entry.items()}
        is_tuple = bool(parts) and list(parts) == [str(i) for i in range(len(parts))]
        return tuple(parts.values()) if is_tuple else parts
    if is_non_tensor(entry):
        return _objects(name, entry)
    tensor = entry.detach()
    if name in LONE_NUMBERS and tensor.ndim == 2 and tensor.shape[-1] == 1:
        tensor = tensor.squeeze(-1)
    is_in_numpy = tensor.device.type == "cpu" and tensor.dtype != torch.bfloat16
    return tensor.numpy() if is_in_numpy else tensor


def _objects(name: str, entry: Any) -> Any:
    if isinstance(entry, NonTensorData):
        if is_array(entry.data):
            return entry.data
        rows = [entry.data] * entry.batch_size[0]
    else:
        rows = entry.tolist()
    return rows if name == ColumnNames.INFOS else object_array(rows)
