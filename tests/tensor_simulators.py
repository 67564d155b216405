"""Simulators of many envs that take and return tensors, as those on a GPU do, and whose every number is known.

An observation is `[env, episode, step]`; the reward of a step is its number, from 1 on. Env `i` plays episodes of
`3 + i % 3` steps; those with an even number terminate, the others are truncated.
"""

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
SPACE = gym.spaces.Box(-1e6, 1e6, (3,), np.float32)
ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)


class Numbers:
    """The state of the envs.

    Args:
        num_envs: B.
        device: where tensors are.
        sends_final: whether infos have the true last observations.
        breaks_at: the step of all, from 1 on, that raises.
    """

    def __init__(self, num_envs, mode, device="cpu", sends_final=True, breaks_at=None):
        self.num_envs, self.device, self.mode = num_envs, torch.device(device), AutoresetMode(mode)
        self.sends_final, self.breaks_at, self.n_steps, self.n_resets = sends_final, breaks_at, 0, 0
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = SPACE, ACTIONS
        self.observation_space = gym.vector.utils.batch_space(SPACE, num_envs)
        self.action_space = gym.vector.utils.batch_space(ACTIONS, num_envs)
        self.env = torch.arange(num_envs, device=self.device)
        self.limit = 3 + self.env % 3
        self.episode, self.t = torch.zeros_like(self.env), torch.zeros_like(self.env)
        self.over = torch.zeros_like(self.env, dtype=torch.bool)
        self.observation = torch.zeros(num_envs, 3, device=self.device)  # written again in every step

    def look(self):
        self.observation[:] = torch.stack([self.env, self.episode, self.t], 1)
        return self.observation

    def begin(self, mask):
        self.episode, self.t = torch.where(mask, self.episode + 1, self.episode), torch.where(mask, 0, self.t)

    def restart(self, options):
        mask = (options or {}).get("reset_mask")
        self.n_resets += 1
        if mask is None:
            mask = torch.ones_like(self.over)
        assert mask.device == self.device, "a mask on the device of the simulator"
        self.begin(mask)
        self.over = self.over & ~mask
        return self.look(), {}

    def advance(self, actions):
        assert isinstance(actions, torch.Tensor)
        assert actions.device == self.device
        assert actions.shape == (self.num_envs, 2)
        self.n_steps += 1
        if self.n_steps == self.breaks_at:
            raise ArithmeticError("the simulator broke")
        actions.fill_(77)  # simulators clamp actions in place
        resets = self.over if self.mode is NEXT_STEP else torch.zeros_like(self.over)
        self.begin(resets)
        self.t = torch.where(resets, 0, self.t + 1)
        reward, over = torch.where(resets, 0, self.t).float(), ~resets & (self.t >= self.limit)
        terminated = over & (self.episode % 2 == 0)
        infos = {"cost": 10.0 * self.t, "log": {"mean": self.t.float().mean()}}
        self.over = over
        if self.mode is SAME_STEP:
            if self.sends_final:
                infos |= {"final_obs": self.look().clone(), "_final_obs": over}
            self.begin(over)
        return self.look(), reward, terminated, over & ~terminated, infos


class Simulator(Numbers, VectorEnv):
    """A vector env of gymnasium."""

    def reset(self, *, seed=None, options=None):
        return self.restart(options)

    def step(self, actions):
        return self.advance(actions)

    def close_extras(self, **kwargs):
        pass


class BatchedSimulator(Numbers, gym.Env):
    """A `gymnasium.Env` of many envs, as Isaac Lab's."""

    def reset(self, *, seed=None, options=None):
        return self.restart(options)

    def step(self, actions):
        return self.advance(actions)


class OfTensors(VectorEnv):
    """A vector env of arrays that takes and returns tensors, which share the memory of the arrays.

    Args:
        env: the vector env.
        device: where tensors are; elsewhere than on the CPU they are copies.
    """

    def __init__(self, env, device="cpu"):
        self.inner, self.device, self.num_envs, self.metadata = env, torch.device(device), env.num_envs, env.metadata
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space

    def reset(self, *, seed=None, options=None):
        if options is not None:
            options = {"reset_mask": options["reset_mask"].numpy(force=True)}
        return self.to_tensors(self.inner.reset(seed=seed, options=options))

    def step(self, actions):
        return self.to_tensors(self.inner.step(to_arrays(actions)))

    def to_tensors(self, value):
        if isinstance(value, dict):
            return {name: self.to_tensors(part) for name, part in value.items()}
        if isinstance(value, tuple):
            return tuple(map(self.to_tensors, value))
        return torch.from_numpy(value).to(self.device) if isinstance(value, np.ndarray) else value

    def close_extras(self, **kwargs):
        self.inner.close()


def to_arrays(value):
    if isinstance(value, dict):
        return {name: to_arrays(part) for name, part in value.items()}
    return tuple(map(to_arrays, value)) if isinstance(value, tuple) else value.numpy(force=True)


def require_lawful(batch):
    """Check every number of a batch `[B, T]` without missing observations; return the number of its frames."""
    valid = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool)).cpu()
    observation, following = batch["observation"].cpu(), batch["next", "observation"].cpu()
    env, episode, t = observation.unbind(-1)
    assert (env == torch.arange(len(batch))[:, None])[valid].all()
    expected = torch.stack([env, episode, t + 1], -1)
    assert (following == expected)[valid].all()
    assert (batch["next", "reward"][..., 0].cpu() == t + 1)[valid].all()
    over = t + 1 >= 3 + env % 3
    flags = {name: batch["next", name][..., 0].cpu() for name in ("done", "terminated", "truncated")}
    assert (flags["done"] == over)[valid].all()
    assert (flags["terminated"] == (over & (episode % 2 == 0)))[valid].all()
    assert (flags["truncated"] == (over & (episode % 2 == 1)))[valid].all()
    assert not batch["action"].eq(77).any(), "what the simulator writes into actions is not recorded"
    ids = batch["collector", "traj_ids"].cpu()
    pairs = {(int(i), int(e), int(k)) for i, e, k in zip(ids[valid], env[valid], episode[valid], strict=True)}
    assert len(pairs) == len({i for i, _, _ in pairs}) == len({(e, k) for _, e, k in pairs})
    return int(valid.sum())
