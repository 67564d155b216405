"""Columns as a TensorDict and back, in the same memory.

obs                        ──▶  observation
rewards [n]                ──▶  ("next", "reward") [n, 1]
actions {"a": …}, (…, …)   ──▶  ("action", "a"), ("action", "0"), …
infos, agent_id            ──▶  non-tensor entries, one per row
seq_lens, state_in_0       ──▶  non-tensor entries, whole: they have no row per transition
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor

from swath import keys
from swath.keys import LOG_PROB, MASK, Key, as_tuple, nested
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.nests import ARRAYS, Leaf, as_tensor, holds_objects, leaves, object_array, rows_of

# The keys of columns that have another name there.
KEYS: dict[str, Key] = {
    ColumnNames.OBS: keys.OBSERVATION,
    ColumnNames.ACTIONS: keys.ACTION,
    ColumnNames.REWARDS: (keys.NEXT, keys.REWARD),
    ColumnNames.NEXT_OBS: (keys.NEXT, keys.OBSERVATION),
    ColumnNames.TERMINATEDS: (keys.NEXT, keys.TERMINATED),
    ColumnNames.TRUNCATEDS: (keys.NEXT, keys.TRUNCATED),
    ColumnNames.DONES: (keys.NEXT, keys.DONE),
    ColumnNames.T: keys.STEP_COUNT,
    ColumnNames.EPS_ID: keys.TRAJ_IDS,
    ColumnNames.POLICY_VERSION: keys.VERSION,
    ColumnNames.ACTION_LOGP: keys.SAMPLE_LOG_PROB,
    ColumnNames.VF_PREDS: keys.STATE_VALUE,
    ColumnNames.ADVANTAGES: keys.ADVANTAGE,
    ColumnNames.VALUE_TARGETS: keys.VALUE_TARGET,
}

# Columns `[n]` that are `[n, 1]` there.
LONE_NUMBERS = (
    *(ColumnNames.REWARDS, ColumnNames.TERMINATEDS, ColumnNames.TRUNCATEDS, ColumnNames.DONES, ColumnNames.T),
    *(ColumnNames.VF_PREDS, ColumnNames.VALUES_BOOTSTRAPPED, ColumnNames.ADVANTAGES, ColumnNames.VALUE_TARGETS),
)

# Root entries that repeat the flags of the step before; no column holds them.
FLAGS_BEFORE = (keys.DONE, keys.TERMINATED, keys.TRUNCATED)


def to_tensordict(columns: Mapping[str, Any], n_rows: int, whole: Collection[str]) -> TensorDict:
    """Columns as a TensorDict `[n]`.

    Numbers stay where they are, except in arrays that are read-only.

    Args:
        columns: by name.
        n_rows: how long they are, with padding.
        whole: names of those that have no row per transition.
    """
    entries = (
        ((*as_tuple(KEYS.get(name, name)), *map(str, path)), _entry(name, leaf, n_rows, whole=name in whole))
        for name, column in columns.items()
        for path, leaf in leaves(column)
    )
    return TensorDict(nested(entries), batch_size=[n_rows])


def _entry(name: str, leaf: Leaf, n_rows: int, *, whole: bool) -> Any:
    if whole or rows_of(leaf) is None:
        return NonTensorData(leaf, batch_size=[n_rows])
    if holds_objects(leaf):
        rows = map(NonTensorData, leaf)
        return NonTensorStack(*rows) if n_rows else NonTensorData(None, batch_size=[0])
    tensor = as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
    return tensor.unsqueeze(-1) if name in LONE_NUMBERS and tensor.ndim == 1 else tensor


def columns_of(td: TensorDictBase) -> dict[str, Any]:
    """The entries of a TensorDict `[n]`, or `[B, T]`, whose rows are then by env, as columns.

    Numbers stay where they are if they are in the host's memory, else columns are tensors. Frames that a mask leaves
    out are left out, and the root flags of the step before. Nested entries `"0"`, `"1"`, … become a tuple.

    Raises:
        ValueError: a batch size of another kind.
    """
    if td.ndim not in (1, 2):
        raise ValueError(f"batch size {list(td.batch_size)} must be [n] or [B, T]; reshape the TensorDict")
    flat = td.reshape(-1)
    mask = flat.get(MASK, None)
    if mask is not None and not bool(mask.all()):
        flat = flat[mask]
    found = {name: flat.get(key, None) for name, key in KEYS.items()}
    read = [*KEYS.values(), MASK, *FLAGS_BEFORE]
    if found[ColumnNames.ACTION_LOGP] is None:
        found[ColumnNames.ACTION_LOGP] = flat.get(LOG_PROB, None)
        read.append(LOG_PROB)
    dones = found.pop(ColumnNames.DONES)
    if dones is not None and found[ColumnNames.TERMINATEDS] is None:  # nothing else says how episodes ended
        truncated = found[ColumnNames.TRUNCATEDS]
        found[ColumnNames.TERMINATEDS] = dones if truncated is None else dones & ~truncated
    rest = flat.exclude(*read)
    found |= {name: rest.get(name) for name in rest.keys()}  # noqa: SIM118  a TensorDict iterates over its rows
    return {name: _column(name, entry) for name, entry in found.items() if not _is_nothing(entry)}


def _is_nothing(entry: Any) -> bool:
    return entry is None or (isinstance(entry, TensorDictBase) and not is_non_tensor(entry) and entry.is_empty())


def _column(name: str, entry: Any) -> Any:
    if isinstance(entry, NonTensorData) and isinstance(entry.data, ARRAYS):
        return entry.data
    if is_non_tensor(entry):
        rows = [entry.data] * entry.batch_size[0] if isinstance(entry, NonTensorData) else entry.tolist()
        return rows if name == ColumnNames.INFOS else object_array(rows)
    if isinstance(entry, TensorDictBase):
        parts = {key: _column(name, entry.get(key)) for key in entry.keys()}  # noqa: SIM118
        return tuple(parts.values()) if list(parts) == [str(i) for i in range(len(parts))] else parts
    tensor = entry.detach()
    if name in LONE_NUMBERS and tensor.ndim == 2 and tensor.shape[-1] == 1:
        tensor = tensor.squeeze(-1)
    is_in_numpy = tensor.device.type == "cpu" and tensor.dtype != torch.bfloat16
    return tensor.numpy() if is_in_numpy else tensor
