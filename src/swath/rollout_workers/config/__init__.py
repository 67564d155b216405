"""The settings of rollout workers: one row each in a table that says what it may be and what becomes of it."""

from __future__ import annotations

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.mapping import is_policy_to_train, mapper
from swath.rollout_workers.config.policy_spec import PolicySpec
from swath.rollout_workers.config.registry import creator_of, register_env

__all__ = [
    "DEFAULT_POLICY_ID",
    "AlgorithmConfig",
    "PolicySpec",
    "creator_of",
    "is_policy_to_train",
    "mapper",
    "register_env",
]
