"""Pong as agents see it: 4×84×84 bytes, stepped by ALE's own vector env."""

from __future__ import annotations

from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode


def pong(envs: int) -> AtariVectorEnv:
    """A vector env that gives true last observations (SAME_STEP)."""
    return AtariVectorEnv("pong", num_envs=envs, autoreset_mode=AutoresetMode.SAME_STEP)
