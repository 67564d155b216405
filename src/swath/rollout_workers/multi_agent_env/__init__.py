"""Envs with several agents: the base class, what it promises, and how other envs become such envs."""

from __future__ import annotations

from swath.rollout.hosts.by_agent import check_reset, check_step
from swath.rollout_workers.multi_agent_env.base import MultiAgentEnv
from swath.rollout_workers.multi_agent_env.copies import make_multi_agent
from swath.rollout_workers.multi_agent_env.pettingzoo import ParallelPettingZooEnv, PettingZooEnv, as_multi_agent

__all__ = [
    "MultiAgentEnv",
    "ParallelPettingZooEnv",
    "PettingZooEnv",
    "as_multi_agent",
    "check_reset",
    "check_step",
    "make_multi_agent",
]
