"""What a sampler counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SamplerCounts:
    """What a sampler has done.

    Attributes:
        env_steps: handed out.
        agent_steps: transitions that were handed out with them.
        discarded: env steps that were made, and will not be.
        episodes: that ended by themselves.
        faulty: that an env ended by raising, or that could not begin.
    """

    env_steps: int = 0
    agent_steps: int = 0
    discarded: int = 0
    episodes: int = 0
    faulty: int = 0
