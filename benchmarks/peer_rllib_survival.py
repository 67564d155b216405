"""RLlib's `EnvRunnerGroup` with two runners: `peer_rllib_survival.py ENVS STEPS ADDRESS FOLDER`, run by its own Python.

As in peer_rllib.py; before each sampling, runners that were lost are looked for, as its `Algorithm` does.
"""

from __future__ import annotations

import sys
import warnings

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.tune.registry import register_env

from peer_rllib import config_of
from survival_stage import make_env, tell


def main(envs: int, steps: int, address: str, folder: str) -> None:
    """Tell what comes."""
    warnings.simplefilter("ignore")
    ray.init(
        address=address,
        log_to_driver=False,
        runtime_env={"py_executable": sys.executable, "env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    register_env("marked", lambda _context: make_env(folder))
    group = EnvRunnerGroup(config=config_of("marked", envs, steps))

    def collect() -> int:
        group.probe_unhealthy_env_runners()
        episodes = group.foreach_env_runner(
            lambda runner: runner.sample(num_timesteps=envs * steps), local_env_runner=False
        )
        return sum(len(episode) for of_one in episodes for episode in of_one)

    tell(collect)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5])
