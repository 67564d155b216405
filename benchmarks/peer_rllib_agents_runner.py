"""RLlib's `MultiAgentEnvRunner` over copies of CartPole-v1: `peer_rllib_agents_runner.py AGENTS POLICIES ENVS STEPS`.

Run by its own Python. Episodes come without values and advantages; networks are 4-256-256-2.
"""

from __future__ import annotations

import sys
import warnings

import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env import make_multi_agent
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner

from rounds import Run, serve, timed


def runner(agents: int, policies: int, envs: int, steps: int) -> Run:
    """Steps of agents."""
    config = (
        PPOConfig()
        .environment(make_multi_agent("CartPole-v1"), env_config={"num_agents": agents})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=envs, rollout_fragment_length=steps)
        .multi_agent(
            policies={str(number) for number in range(policies)},
            policy_mapping_fn=lambda agent, *_, **__: str(agent % policies),
        )
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[256, 256], fcnet_activation="tanh", vf_share_layers=False)
        )
    )
    sampling = MultiAgentEnvRunner(config=config)

    def draw() -> int:
        sampling.get_metrics()
        return sum(episode.agent_steps() for episode in sampling.sample(num_timesteps=envs * steps))

    return timed(draw)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    serve(runner(*map(int, sys.argv[1:])))
