"""Learning: a small reference PPO and the lean policies that it trains."""

from swath.learn.defaults import NetworkConfig, default_config, make_policy
from swath.learn.policy import NetworkPolicy
from swath.learn.ppo import PPO, LearnerConfig

__all__ = ["PPO", "LearnerConfig", "NetworkConfig", "NetworkPolicy", "default_config", "make_policy"]
