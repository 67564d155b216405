"""Copies of single-agent envs as agents of one."""

from __future__ import annotations

from swath.rollout_workers.multi_agent_env import make_multi_agent
from swath.testing.envs.random_env import RandomEnv

MultiAgentCartPole = make_multi_agent("CartPole-v1")
"""CartPoles that have nothing to do with each other, one per agent."""

RandomMultiAgentEnv = make_multi_agent(RandomEnv)
"""Random envs, one per agent; the config is that of `RandomEnv`."""
