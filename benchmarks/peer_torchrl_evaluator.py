"""TorchRL's `Evaluator` on the env of two lengths: `peer_torchrl_evaluator.py ENVS EPISODES`, run by its own Python.

A `SerialEnv` of `GymWrapper`s, as its documentation has it; a line in, the mean return of one evaluation out.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Evaluator
from torchrl.envs import GymWrapper, SerialEnv

from rounds import serve
from uneven import Uneven


def left(observation: torch.Tensor) -> torch.Tensor:
    """The same action always."""
    return torch.zeros(observation.shape[:-1], dtype=torch.int64)


def make_one() -> Any:
    """One env."""
    return GymWrapper(Uneven(), categorical_action_encoding=True)


def main(envs: int, episodes: int) -> None:
    """Serve means."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    env = make_one() if envs == 1 else SerialEnv(envs, make_one)
    policy = TensorDictModule(left, ["observation"], ["action"])
    evaluator = Evaluator(env, policy, num_trajectories=episodes, max_steps=100)
    serve(lambda _: float(evaluator.evaluate()["eval/reward"]))
    evaluator.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
