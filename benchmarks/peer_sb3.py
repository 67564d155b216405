"""Stable-Baselines3's `collect_rollouts` as a contender: `peer_sb3.py ENVS STEPS`, run by its own environment's Python.

It does more than the others: its PPO evaluates a value network for every row, and GAE at the end of the batch.
"""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from rounds import serve, timed


def main(envs: int, steps: int) -> None:
    """Serve rates for CartPole-v1 with its default 4-64-64 networks."""
    torch.set_num_threads(1)
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", envs, seed=0), n_steps=steps, device="cpu", seed=0)
    _, callback = model._setup_learn(10**12)  # noqa: SLF001  what learn() does before it collects

    def collect() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, steps)
        return envs * steps

    serve(timed(collect))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
