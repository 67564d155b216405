"""Columns as a TensorDict and back, in the same memory.

obs                        ──▶  observation
rewards [n]                ──▶  ("next", "reward") [n, 1]
actions {"a": …}, (…, …)   ──▶  ("action", "a"), ("action", "0"), …
infos, agent_id            ──▶  non-tensor entries, one per row
seq_lens, state_in_0       ──▶  non-tensor entries, whole: they have no row per transition
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor

from swath import keys
from swath.keys import MASK, Key, as_tuple, nested
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.nests import ARRAYS, Leaf, holds_objects, leaves, object_array, rows_of, tensor_of

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
_COLUMNS = {key: name for name, key in KEYS.items()}

# Entries that no column holds: the mask, and at the root the flags of the step before.
_LEFT_OUT = (MASK, *keys.FLAGS)

# Columns `[n]` that are `[n, 1]` there.
LONE_NUMBERS = (
    *(ColumnNames.REWARDS, ColumnNames.TERMINATEDS, ColumnNames.TRUNCATEDS, ColumnNames.DONES, ColumnNames.T),
    *(ColumnNames.VF_PREDS, ColumnNames.VALUES_BOOTSTRAPPED, ColumnNames.ADVANTAGES, ColumnNames.VALUE_TARGETS),
)


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
        return NonTensorStack(*map(NonTensorData, leaf)) if n_rows else NonTensorData(None, batch_size=[0])
    tensor = tensor_of(leaf)
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
    flat = td if td.ndim == 1 else td.reshape(-1)
    mask = flat.get(MASK, None)
    if mask is not None and not bool(mask.all()):
        flat = flat[mask]
    entries = ((_COLUMNS.get(key, key), entry) for key, entry in _entries(flat) if key not in _LEFT_OUT)
    found = {name: _column(name, entry) for name, entry in entries}
    if keys.LOG_PROB in found:
        found.setdefault(ColumnNames.ACTION_LOGP, found.pop(keys.LOG_PROB))
    if ColumnNames.DONES in found:  # read only where nothing else says how episodes ended
        found.setdefault(ColumnNames.TERMINATEDS, found.pop(ColumnNames.DONES))
    return nested(found.items())


def _entries(td: TensorDictBase) -> Iterator[tuple[Key, Any]]:
    for key, entry in td.items():
        if key in (keys.NEXT, keys.COLLECTOR):
            yield from (((key, inner), part) for inner, part in entry.items())
        else:
            yield key, entry


def _column(name: Key, entry: Any) -> Any:
    if isinstance(entry, NonTensorData) and isinstance(entry.data, ARRAYS):
        return entry.data
    if is_non_tensor(entry):
        rows = [entry.data] * entry.batch_size[0] if isinstance(entry, NonTensorData) else entry.tolist()
        return rows if name == ColumnNames.INFOS else object_array(rows)
    if isinstance(entry, TensorDictBase):
        parts = {key: _column(name, part) for key, part in entry.items()}
        return tuple(parts.values()) if list(parts) == [str(i) for i in range(len(parts))] else parts
    tensor = entry.detach()
    if name in LONE_NUMBERS and tensor.ndim == 2 and tensor.shape[-1] == 1:
        tensor = tensor.squeeze(-1)
    is_in_numpy = tensor.device.type == "cpu" and tensor.dtype != torch.bfloat16
    return tensor.numpy() if is_in_numpy else tensor
