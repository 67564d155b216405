"""RLlib's `EnvRunnerGroup` as a contender: `peer_rllib.py ENVS STEPS ADDRESS`, run by its own environment's Python.

Two env runners with the default module of its PPO, a 4-64-64-2 network; they sample in parallel, all are waited for.
"""

from __future__ import annotations

import sys
import warnings

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rounds import serve, timed

WORKERS = 2


def config_of(env: str, envs: int, steps: int) -> PPOConfig:
    """So many sub-envs in each runner, so many steps of each a sampling."""
    return (
        PPOConfig()
        .environment(env)
        .env_runners(
            num_env_runners=WORKERS,
            num_envs_per_env_runner=envs,
            rollout_fragment_length=steps,
            create_local_env_runner=False,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    )


def main(envs: int, steps: int, address: str) -> None:
    """Serve rates for CartPole-v1."""
    warnings.simplefilter("ignore")
    ray.init(
        address=address,
        log_to_driver=False,
        runtime_env={"py_executable": sys.executable, "env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    group = EnvRunnerGroup(config=config_of("CartPole-v1", envs, steps))

    def collect() -> int:
        episodes = group.foreach_env_runner(
            lambda runner: runner.sample(num_timesteps=envs * steps), local_env_runner=False
        )
        return sum(len(episode) for of_one in episodes for episode in of_one)

    serve(timed(collect))
    group.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
