"""A worker whose envs and policies do next to nothing, so that what is left is the sampling: for either library.

Needs nothing of ours: the child that stands for RLlib imports it too.
"""

from __future__ import annotations

import gymnasium
import numpy as np

AGENTS, ENVS, POLICIES, LENGTH, FRAGMENT = 25, 4, 3, 100, 100
SPACES = gymnasium.spaces.Box(-1, 1, (4,), np.float32), gymnasium.spaces.Discrete(2)


def worker_of(library):
    """A worker made of a library's `MultiAgentEnv`, `Policy`, `RolloutWorker` and a config to begin with."""

    class Many(library.MultiAgentEnv):
        """All agents act in each step of an episode of a fixed length."""

        def __init__(self) -> None:
            self.agents = self.possible_agents = list(range(AGENTS))
            self._agent_ids = set(self.agents)
            self.observation_space, self.action_space = SPACES
            super().__init__()

        def reset(self, *, seed=None, options=None):  # noqa: ARG002
            """Begin to count."""
            self.at = 0
            return {agent: np.zeros(4, np.float32) for agent in self.agents}, {}

        def step(self, actions):
            """Count."""
            self.at += 1
            seen = {agent: np.zeros(4, np.float32) for agent in actions}
            flags = {"__all__": self.at == LENGTH}
            return seen, dict.fromkeys(actions, 1.0), {"__all__": False}, flags, {}

    class Answering(library.Policy):
        """Does the first thing."""

        def compute_actions(self, obs_batch, *args, **kwargs):  # noqa: ARG002
            """Zeros."""
            return np.zeros(len(obs_batch), dtype=int), [], {}

        def get_weights(self):
            """None."""
            return {}

    specs = {f"p{i}": (Answering, *SPACES, {}) for i in range(POLICIES)}
    config = library.config.env_runners(num_envs_per_env_runner=ENVS, rollout_fragment_length=FRAGMENT)
    config = config.multi_agent(policies=specs, policy_mapping_fn=lambda agent, *_, **__: f"p{agent % POLICIES}")
    return library.RolloutWorker(env_creator=lambda _: Many(), config=config)
