"""The loop a good user writes around a gymnasium vector env: arrays made once per batch, rows written in place.

    obs ─▶ policy ─▶ action ─▶ envs.step ─▶ arrays [T, B, …] ─▶ a dict of tensors

Of the forms tried (preallocated tensors, lists that are stacked, preallocated arrays, each with the vector env's copies
of observations and without) this is the quickest without copies, by some per cent. True last observations are kept
only where episodes ended, which is less work than a `next` entry per row.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode


class ByHand:
    """Collects `steps` steps of all envs with each call, for envs in autoreset mode SAME_STEP or NEXT_STEP."""

    def __init__(self, envs: gymnasium.vector.VectorEnv, policy, steps: int) -> None:
        self.envs, self.policy, self.steps = envs, policy, steps
        self.next_step = envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        self.obs, _ = envs.reset(seed=0)
        self.was_done = np.zeros(envs.num_envs, bool)

    @torch.no_grad()
    def collect(self) -> dict[str, torch.Tensor]:
        """One batch `[T, B, …]`."""
        rows, n = self.steps, self.envs.num_envs
        space = self.envs.single_observation_space
        observation = np.empty((rows, n, *space.shape), space.dtype)
        action = np.empty((rows, n), np.int64)
        log_prob, reward = np.empty((rows, n), np.float32), np.empty((rows, n), np.float32)
        terminated, done, valid = (np.empty((rows, n), bool) for _ in range(3))
        last_observation = {}
        policy, envs, obs, was_done = self.policy, self.envs, self.obs, self.was_done
        for t in range(rows):
            observation[t] = obs
            act, logp = policy(torch.from_numpy(obs))
            action[t], log_prob[t] = act.numpy(), logp.numpy()
            obs, rew, term, trunc, info = envs.step(action[t])
            over = term | trunc
            reward[t], terminated[t], done[t] = rew, term, over
            if self.next_step:
                valid[t] = ~was_done  # its last observation is the next row's, which is no transition
                was_done = over
            elif over.any():
                for env in np.flatnonzero(over):
                    last_observation[t, env] = info["final_obs"][env]
        self.obs, self.was_done, self.last_observation = obs, was_done, last_observation
        arrays = {"observation": observation, "action": action, "log_prob": log_prob, "reward": reward}
        arrays |= {"terminated": terminated, "done": done} | ({"valid": valid} if self.next_step else {})
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def frames(self) -> int:
        """Collect a batch; how many transitions it has."""
        batch = self.collect()
        return int(batch["valid"].sum()) if self.next_step else batch["reward"].numel()
