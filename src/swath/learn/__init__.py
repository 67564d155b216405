"""Learning: a small reference PPO and the lean policies that it trains."""

from swath.learn.policy import NetworkConfig, NetworkPolicy, make_policy
from swath.learn.ppo import PPO, LearnerConfig, default_config

__all__ = ["PPO", "LearnerConfig", "NetworkConfig", "NetworkPolicy", "default_config", "make_policy"]
