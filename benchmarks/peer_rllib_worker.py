"""RLlib sampling CartPole-v1 in one process: `peer_rllib_worker.py {worker|runner} ENVS STEPS`, run by its own Python.

`worker` is the `RolloutWorker` of its old stack with its PPO policy, whose batches are complete with values and
advantages; `runner` is `SingleAgentEnvRunner`, which answers episodes without them. Networks are 4-256-256-2; the
worker has a value network beside its own, the runner has none.
"""

from __future__ import annotations

import sys
import warnings

import gymnasium
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.evaluation.rollout_worker import RolloutWorker

from rounds import Run, serve, timed


def config_for(envs: int, steps: int) -> PPOConfig:
    """What both are told."""
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=envs, rollout_fragment_length=steps)
        .training(lambda_=0.95)
    )


def worker(envs: int, steps: int) -> Run:
    """Rows of batches."""
    config = config_for(envs, steps).framework("torch")
    sampling = RolloutWorker(
        env_creator=lambda _: gymnasium.make("CartPole-v1"),
        default_policy_class=PPOTorchPolicy,
        config=config.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False),
    )

    def draw() -> int:
        sampling.get_metrics()
        return len(sampling.sample())

    return timed(draw)


def runner(envs: int, steps: int) -> Run:
    """Steps of episodes."""
    model = DefaultModelConfig(fcnet_hiddens=[256, 256], fcnet_activation="tanh", vf_share_layers=False)
    sampling = SingleAgentEnvRunner(config=config_for(envs, steps).rl_module(model_config=model))

    def draw() -> int:
        sampling.get_metrics()
        return sum(map(len, sampling.sample(num_timesteps=envs * steps)))

    return timed(draw)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    serve({"worker": worker, "runner": runner}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3])))
