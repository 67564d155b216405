"""RLlib as a contender; run by its own environment's Python. Networks are 4-64-64-2 by default.

peer_rllib.py collect ENVS STEPS ADDRESS         rates of `EnvRunnerGroup` with two runners, CartPole-v1
peer_rllib.py survive ENVS STEPS ADDRESS FOLDER  batches with their time, until it is ended
peer_rllib.py uneven ENVS EPISODES               mean return of `sample(num_episodes=…)`
peer_rllib.py worker ENVS STEPS                  rates of `RolloutWorker` with PPO: values and advantages; 256-256
peer_rllib.py runner ENVS STEPS                  rates of `SingleAgentEnvRunner`, which has neither; 256-256
peer_rllib.py agents AGENTS POLICIES ENVS STEPS  rates of `MultiAgentEnvRunner`, which has neither; 256-256
peer_rllib.py idle                               rates of `RolloutWorker` on the envs of many_agents.py
"""

from __future__ import annotations

import logging
import statistics
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.multi_agent_env import MultiAgentEnv, make_multi_agent
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.evaluation.rollout_worker import RolloutWorker
from ray.rllib.policy.policy import Policy
from ray.tune.registry import register_env

from many_agents import worker_of
from peer_envs import Uneven, marked_env, report
from rounds import begin_ray, serve, timed

WORKERS = 2
OLD_STACK = {"enable_rl_module_and_learner": False, "enable_env_runner_and_connector_v2": False}


def config_of(env: Any, envs: int, steps: int, *, size: int = 256, runners: int = 0) -> PPOConfig:
    """Return PPO's config with so many sub-envs per runner and steps per sampling."""
    model = DefaultModelConfig(fcnet_hiddens=[size, size], fcnet_activation="tanh", vf_share_layers=False)
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=envs, rollout_fragment_length=steps)
        .env_runners(create_local_env_runner=not runners)
        .training(lambda_=0.95)
        .rl_module(model_config=model)
    )


def sampling(group: EnvRunnerGroup, steps: int, before: Callable[[], Any] = list) -> Callable[[], int]:
    """Sample with both runners in parallel, and wait for both."""

    def draw() -> int:
        before()
        found = group.foreach_env_runner(lambda runner: runner.sample(num_timesteps=steps), local_env_runner=False)
        return sum(len(episode) for episodes in found for episode in episodes)

    return draw


def collect(envs: int, steps: int, address: str) -> None:
    """Serve frames per second."""
    begin_ray(address)
    group = EnvRunnerGroup(config=config_of("CartPole-v1", envs, steps, size=64, runners=WORKERS))
    serve(timed(sampling(group, envs * steps)))
    group.stop()


def survive(envs: int, steps: int, address: str, folder: str) -> None:
    """Report batches; lost runners are looked for before each, as its `Algorithm` does."""
    begin_ray(address)
    register_env("marked", lambda _context: marked_env(folder))
    group = EnvRunnerGroup(config=config_of("marked", envs, steps, size=64, runners=WORKERS))
    report(sampling(group, envs * steps, group.probe_unhealthy_env_runners))


def uneven(envs: int, episodes: int) -> None:
    """Serve mean returns."""
    config = PPOConfig().environment(Uneven).env_runners(num_envs_per_env_runner=envs)
    runner = SingleAgentEnvRunner(config=config)

    def mean(_: float) -> float:
        done = [episode for episode in runner.sample(num_episodes=episodes, explore=False) if episode.is_done]
        return statistics.fmean(episode.get_return() for episode in done)

    serve(mean)


def worker(envs: int, steps: int) -> None:
    """Serve rows per second."""
    worker = RolloutWorker(
        env_creator=lambda _: gymnasium.make("CartPole-v1"),
        default_policy_class=PPOTorchPolicy,
        config=config_of("CartPole-v1", envs, steps).framework("torch").api_stack(**OLD_STACK),
    )

    def draw() -> int:
        worker.get_metrics()
        return len(worker.sample())

    serve(timed(draw))


def serve_steps(runner: Any, steps: int, count: Callable[[Any], int]) -> None:
    """Serve steps of episodes per second."""

    def draw() -> int:
        runner.get_metrics()
        return sum(map(count, runner.sample(num_timesteps=steps)))

    serve(timed(draw))


def runner(envs: int, steps: int) -> None:
    """Serve rates of one agent."""
    serve_steps(SingleAgentEnvRunner(config=config_of("CartPole-v1", envs, steps)), envs * steps, len)


def agents(number: int, policies: int, envs: int, steps: int) -> None:
    """Serve rates of several agents, in copies of CartPole-v1."""
    config = config_of(make_multi_agent("CartPole-v1"), envs, steps).multi_agent(
        policies={str(policy) for policy in range(policies)},
        policy_mapping_fn=lambda agent, *_, **__: str(agent % policies),
    )
    runner = MultiAgentEnvRunner(config=config.environment(env_config={"num_agents": number}))
    serve_steps(runner, envs * steps, lambda episode: episode.agent_steps())


def idle() -> None:
    """Serve rates of several agents whose envs and policies do next to nothing."""
    config = AlgorithmConfig().api_stack(**OLD_STACK).env_runners(num_env_runners=0)
    library = SimpleNamespace(MultiAgentEnv=MultiAgentEnv, Policy=Policy, RolloutWorker=RolloutWorker, config=config)
    worker = worker_of(library)
    serve(timed(lambda: worker.sample().agent_steps()))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    modes = (collect, survive, uneven, worker, runner, agents, idle)
    called = {mode.__name__: mode for mode in modes}[sys.argv[1]]
    called(*(int(arg) if arg.isdigit() else arg for arg in sys.argv[2:]))
