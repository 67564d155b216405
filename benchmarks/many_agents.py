"""Compare `RolloutWorker.sample()` with many agents with RLlib's: the cost of the sampling itself.

    python benchmarks/many_agents.py [--quick]

25 agents in each of 4 envs, 3 policies; envs and policies do next to nothing. Ends with 1 if the target is missed.
RLlib's process imports `worker_of`, so the top imports no Swath.
"""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np

from rounds import CPU, Peer, Target, compare, ended, parser, python_of, timed

AGENTS, ENVS, POLICIES, LENGTH, FRAGMENT = 25, 4, 3, 100, 100
SPACES = gymnasium.spaces.Box(-1, 1, (4,), np.float32), gymnasium.spaces.Discrete(2)
OURS, THEIRS = "RolloutWorker", "RLlib's RolloutWorker"


def worker_of(library):
    """Return a worker made of a library's `MultiAgentEnv`, `Policy`, `RolloutWorker` and initial config."""

    class Many(library.MultiAgentEnv):
        """All agents act in each step of an episode of a fixed length."""

        def __init__(self) -> None:
            self.agents = self.possible_agents = list(range(AGENTS))
            self._agent_ids = set(self.agents)
            self.observation_space, self.action_space = SPACES
            super().__init__()

        def reset(self, *, seed=None, options=None):  # noqa: ARG002
            self.at = 0
            return {agent: np.zeros(4, np.float32) for agent in self.agents}, {}

        def step(self, actions):
            self.at += 1
            observations = {agent: np.zeros(4, np.float32) for agent in actions}
            flags = {"__all__": self.at == LENGTH}
            return observations, dict.fromkeys(actions, 1.0), {"__all__": False}, flags, {}

    class Zeros(library.Policy):
        """Picks action 0."""

        def compute_actions(self, obs_batch, *args, **kwargs):  # noqa: ARG002
            return np.zeros(len(obs_batch), dtype=int), [], {}

        def get_weights(self):
            return {}

    specs = {f"p{i}": (Zeros, *SPACES, {}) for i in range(POLICIES)}
    config = library.config.env_runners(num_envs_per_env_runner=ENVS, rollout_fragment_length=FRAGMENT)
    config = config.multi_agent(policies=specs, policy_mapping_fn=lambda agent, *_, **__: f"p{agent % POLICIES}")
    return library.RolloutWorker(env_creator=lambda _: Many(), config=config)


def main() -> int:
    """Measure both."""
    from policies import quiet_threads
    from swath import AlgorithmConfig, RolloutWorker
    from swath.rollout_workers import MultiAgentEnv, Policy

    rounds, seconds = (5, 0.5) if parser(__doc__).parse_args().quick else (21, 1.0)
    quiet_threads()
    library = SimpleNamespace(
        MultiAgentEnv=MultiAgentEnv, Policy=Policy, RolloutWorker=RolloutWorker, config=AlgorithmConfig()
    )
    worker, peer = worker_of(library), Peer(python_of("rllib"), "peer_rllib.py", "idle")
    contenders = {OURS: timed(lambda: worker.sample().agent_steps()), THEIRS: peer}
    title = f"{AGENTS} agents in each of {ENVS} envs, {POLICIES} policies, {'CPU' if CPU else 'wall'} seconds"
    reached = compare(title, contenders, [Target(OURS, THEIRS, 5)], rounds, seconds, "transitions/s")
    peer.close()
    return ended([reached])


if __name__ == "__main__":
    raise SystemExit(main())
