"""RLlib's `RolloutWorker.sample()` with many agents, by its own Python; see `rollout_worker_agents.py`."""

from __future__ import annotations

import logging
import warnings
from types import SimpleNamespace

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.evaluation.rollout_worker import RolloutWorker
from ray.rllib.policy.policy import Policy

from many_agents import worker_of
from rounds import serve, timed


def main() -> None:
    """Serve rates."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    config = AlgorithmConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    library = SimpleNamespace(MultiAgentEnv=MultiAgentEnv, Policy=Policy, RolloutWorker=RolloutWorker)
    library.config = config.env_runners(num_env_runners=0)
    worker = worker_of(library)
    serve(timed(lambda: worker.sample().agent_steps()))


if __name__ == "__main__":
    main()
