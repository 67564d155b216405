"""RLlib's `sample(num_episodes=...)` on the env of two lengths: `peer_rllib_episodes.py ENVS EPISODES`.

Run by its own environment's Python. A line in, the mean return of the episodes that one call gave out.
"""

from __future__ import annotations

import logging
import statistics
import sys
import warnings

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from rounds import serve
from uneven import Uneven


def main(envs: int, episodes: int) -> None:
    """Serve means."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    config = PPOConfig().environment(Uneven).env_runners(num_envs_per_env_runner=envs)
    runner = SingleAgentEnvRunner(config=config)

    def mean(_: float) -> float:
        done = [episode for episode in runner.sample(num_episodes=episodes, explore=False) if episode.is_done]
        return statistics.fmean(episode.get_return() for episode in done)

    serve(mean)
    runner.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
