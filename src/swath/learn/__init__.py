"""Learning: a small reference PPO and the lean policies that it trains."""

from swath.learn.defaults import NetworkConfig, default_config, make_policy
from swath.learn.policy import NetworkPolicy
from swath.learn.ppo import PPO, PPOConfig

__all__ = ["PPO", "NetworkConfig", "NetworkPolicy", "PPOConfig", "default_config", "make_policy"]
