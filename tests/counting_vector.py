"""A vector env of counting envs with any of gymnasium's three autoreset modes."""

from copy import deepcopy

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from swath.testing import CountingEnv


class CountingVectorEnv(VectorEnv):
    """B counting envs that step as a batch. It is not gymnasium's `SyncVectorEnv`, and differs where it may.

    The last observations in its `SAME_STEP` infos are stacked, as observations are; rows of envs that have not ended
    mean nothing there. Single envs can be reset (`options={"reset_mask": …}`) in mode `DISABLED` only. With
    `copy=False` it writes into the same arrays at every step.
    """

    def __init__(self, num_envs, counting=None, *, autoreset_mode=AutoresetMode.SAME_STEP, copy=True, faults=None):
        self.envs = [CountingEnv(i, counting, (faults or {}).get(i, ())) for i in range(num_envs)]
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._mode, self._copy = autoreset_mode, copy
        self._rows = [None] * num_envs
        self._batch = self._room()

    def reset(self, *, seed=None, options=None):
        """Begin episodes in all envs, or in the masked ones, with the seeds `seed`, `seed + 1`, …."""
        mask = None if options is None else options.get("reset_mask")
        if isinstance(seed, list) or (mask is not None and self._mode != AutoresetMode.DISABLED):
            raise ValueError("this vector env takes one seed, and a reset_mask in mode DISABLED only")
        for i in range(self.num_envs) if mask is None else np.flatnonzero(mask):
            self._rows[i], _ = self.envs[i].reset(seed=None if seed is None else seed + int(i))
        return self._stacked(), {}

    def step(self, actions):
        """Step every env; in mode `NEXT_STEP` an env whose episode has ended resets instead."""
        rewards = np.zeros(self.num_envs)
        flags = np.zeros((2, self.num_envs), dtype=np.bool_)
        for i, action in enumerate(iterate(self.action_space, actions)):
            if self._mode == AutoresetMode.NEXT_STEP and self.envs[i].plan is None:
                self._rows[i], _ = self.envs[i].reset()
            else:
                self._rows[i], rewards[i], *flags[:, i], _ = self.envs[i].step(action)
        infos, ended = {}, np.logical_or(*flags)
        if self._mode == AutoresetMode.SAME_STEP and ended.any():
            infos = {
                "final_obs": concatenate(self.single_observation_space, self._rows, self._room()),
                "_final_obs": ended,
            }
            for i in np.flatnonzero(ended):
                self._rows[i], _ = self.envs[i].reset()
        return self._stacked(), rewards, *flags.copy(), infos

    def close_extras(self, **kwargs):
        for env in self.envs:
            env.close()

    def _stacked(self):
        self._batch = concatenate(self.single_observation_space, self._rows, self._batch)
        return deepcopy(self._batch) if self._copy else self._batch

    def _room(self):
        return create_empty_array(self.single_observation_space, self.num_envs, fn=np.zeros)
