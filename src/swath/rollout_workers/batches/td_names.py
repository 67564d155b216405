"""Where columns are in a TensorDict."""

from __future__ import annotations

from swath import keys
from swath.keys import Key
from swath.rollout_workers.batches.names import ColumnNames

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
"""The keys of columns that have another name there."""

LONE_NUMBERS = frozenset(
    {
        ColumnNames.REWARDS,
        ColumnNames.TERMINATEDS,
        ColumnNames.TRUNCATEDS,
        ColumnNames.DONES,
        ColumnNames.T,
        ColumnNames.VF_PREDS,
        ColumnNames.VALUES_BOOTSTRAPPED,
        ColumnNames.ADVANTAGES,
        ColumnNames.VALUE_TARGETS,
    }
)
"""Columns `[n]` that are `[n, 1]` there."""

FLAGS_BEFORE = (keys.DONE, keys.TERMINATED, keys.TRUNCATED)
"""Root entries that repeat the flags of the step before; no column holds them."""
