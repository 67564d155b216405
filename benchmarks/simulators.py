"""Simulators for gpu.py: pendulums as tensors on a device, and images on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

LIMIT = 200


class Pendulums(VectorEnv[Any, Any, Any]):
    """The pendulum of `torchrl_envs.py` as a vector env of tensors, which resets within the step."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, device: str) -> None:
        self.num_envs, self.device = num_envs, device
        self.single_observation_space, self.single_action_space = Box(-np.inf, np.inf, (3,)), Box(-2, 2, (1,))

    def _draw(self) -> Tensor:
        return torch.rand(self.num_envs, device=self.device) * 2 - 1

    def _seen(self) -> Tensor:
        return torch.stack([self._angle.cos(), self._angle.sin(), self._speed], -1)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:  # noqa: ARG002
        """Begin with all pendulums, at different steps of their episodes."""
        self._angle, self._speed = self._draw() * torch.pi, self._draw()
        self._steps = torch.randint(LIMIT, (self.num_envs,), device=self.device)
        return self._seen(), {}

    def step(self, actions: Tensor) -> Any:
        """Step all pendulums."""
        torque = actions.squeeze(-1).clamp(-2, 2)
        angle = (self._angle + torch.pi) % (2 * torch.pi) - torch.pi
        cost = angle**2 + 0.1 * self._speed**2 + 0.001 * torque**2
        self._speed = (self._speed + (15 * self._angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self._angle, self._steps = self._angle + self._speed * 0.05, self._steps + 1
        last, cut = self._seen(), self._steps >= LIMIT
        self._angle = torch.where(cut, self._draw() * torch.pi, self._angle)
        self._speed = torch.where(cut, self._draw(), self._speed)
        self._steps = self._steps.masked_fill(cut, 0)
        return self._seen(), -cost, torch.zeros_like(cut), cut, {"final_obs": last}


class Pixels(VectorEnv[Any, Any, Any]):
    """Images in memory of the CPU, made before: stepping costs nothing."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self._t = num_envs, 0
        self.single_observation_space, self.single_action_space = Box(0, 255, (4, 84, 84), np.uint8), Discrete(2)
        self._images = np.random.default_rng(0).integers(0, 256, (4, num_envs, 4, 84, 84), np.uint8)
        self._reward, self._flags = np.ones(num_envs, np.float32), np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:  # noqa: ARG002
        """Return images."""
        return self._images[0], {}

    def step(self, actions: Any) -> Any:  # noqa: ARG002
        """Return images."""
        self._t += 1
        return self._images[self._t % 4], self._reward, self._flags, self._flags, {}
