"""Checks across settings: what each may be for itself, and not together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swath.rollout_workers.config.algorithm_config import AlgorithmConfig


def validate(config: AlgorithmConfig) -> None:
    """Raise `ValueError` if settings contradict each other; says which, and what to change."""
    _critic(config)
    _policies(config)
    _evaluation(config)
    _overrides(config)


def _critic(config: AlgorithmConfig) -> None:
    if config.use_gae and not config.use_critic:
        raise ValueError("use_gae=True needs use_critic=True: it is made of values; set use_gae=False as well")


def _policies(config: AlgorithmConfig) -> None:
    to_train = config.policies_to_train
    if to_train is None or callable(to_train):
        return
    unknown = sorted(set(to_train) - set(config.policies))
    if unknown:
        raise ValueError(f"policies_to_train has {unknown}, but policies are {sorted(config.policies)}")


def _overrides(config: AlgorithmConfig) -> None:
    """Settings that wait to be applied are tried."""
    config.get_evaluation_config_object()
    for spec in config.policies.values():
        config.of_policy(spec)


def _evaluation(config: AlgorithmConfig) -> None:
    if config.in_evaluation and config.evaluation_config is not None:
        raise ValueError(
            "in_evaluation=True is for configs from get_evaluation_config_object; evaluation_config must be None"
        )
