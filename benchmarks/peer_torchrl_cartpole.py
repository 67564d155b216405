"""TorchRL's `Evaluator` on CartPole: `peer_torchrl_cartpole.py ENVS EPISODES MAX_STEPS`, run by its own Python.

A `SerialEnv` of `GymEnv`s, as its documentation has it; a line with seconds in, evaluations per second out.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Evaluator
from torchrl.envs import GymEnv, SerialEnv

from rounds import serve, timed


def upright(observation: torch.Tensor) -> torch.Tensor:
    """Pushes to where the pole falls."""
    return (observation[..., 2] + observation[..., 3] > 0).long()


def make_one() -> Any:
    """One env."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def main(envs: int, episodes: int, max_steps: int) -> None:
    """Serve rates."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    policy = TensorDictModule(upright, ["observation"], ["action"])
    evaluator = Evaluator(SerialEnv(envs, make_one), policy, num_trajectories=episodes, max_steps=max_steps)
    serve(timed(lambda: len([evaluator.evaluate()])))
    evaluator.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
