"""Small envs under the names by which users of RLlib know them; what they do is easy to foresee."""

from __future__ import annotations

from swath.testing.envs.agents import BasicMultiAgent, FlexAgentsMultiAgent, SometimesZeroAgentsMultiAgent
from swath.testing.envs.in_turn import EarlyDoneMultiAgent, RoundRobinMultiAgent
from swath.testing.envs.mock import MockEnv, MockEnv2, MockEnv3
from swath.testing.envs.random_env import RandomEnv
from swath.testing.envs.several import MultiAgentCartPole, RandomMultiAgentEnv
from swath.testing.envs.vector import MockVectorEnv, VectorizedMockEnv

__all__ = [
    "BasicMultiAgent",
    "EarlyDoneMultiAgent",
    "FlexAgentsMultiAgent",
    "MockEnv",
    "MockEnv2",
    "MockEnv3",
    "MockVectorEnv",
    "MultiAgentCartPole",
    "RandomEnv",
    "RandomMultiAgentEnv",
    "RoundRobinMultiAgent",
    "SometimesZeroAgentsMultiAgent",
    "VectorizedMockEnv",
]
