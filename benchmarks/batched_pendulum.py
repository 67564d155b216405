"""Gymnasium's `Pendulum-v1` as a batched env of TorchRL's: B pendulums in a handful of tensor operations."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

EPISODE = 200


class BatchedPendulum(EnvBase):
    """All pendulums begin together and are cut after 200 steps.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(batch_size=torch.Size([num_envs]))
        b = self.batch_size
        flag = Categorical(2, dtype=torch.bool, shape=(*b, 1))
        self.observation_spec = Composite(observation=Unbounded((*b, 3)), shape=b)
        self.action_spec = Bounded(-2, 2, (*b, 1))
        self.reward_spec = Unbounded((*b, 1))
        self.done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=b)
        self._angle = self._speed = torch.zeros(b)
        self._steps = torch.zeros(b, dtype=torch.int64)

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(0 if seed is None else seed)

    def _seen(self) -> Tensor:
        return torch.stack([self._angle.cos(), self._angle.sin(), self._speed], -1)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        partial = None if tensordict is None else tensordict.get("_reset", None)
        again = torch.ones(self.batch_size, dtype=torch.bool) if partial is None else partial.squeeze(-1)
        self._angle = torch.where(again, (torch.rand(self.batch_size) * 2 - 1) * torch.pi, self._angle)
        self._speed = torch.where(again, torch.rand(self.batch_size) * 2 - 1, self._speed)
        self._steps = self._steps.masked_fill(again, 0)
        return TensorDict({"observation": self._seen()}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        torque = tensordict["action"].squeeze(-1).clamp(-2, 2)
        angle = (self._angle + torch.pi) % (2 * torch.pi) - torch.pi
        cost = angle**2 + 0.1 * self._speed**2 + 0.001 * torque**2
        self._speed = (self._speed + (15 * self._angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self._angle = self._angle + self._speed * 0.05
        self._steps = self._steps + 1
        cut = (self._steps >= EPISODE).unsqueeze(-1)
        entries = {"observation": self._seen(), "reward": -cost.unsqueeze(-1)}
        flags = {"done": cut, "terminated": torch.zeros_like(cut), "truncated": cut.clone()}
        return TensorDict({**entries, **flags}, self.batch_size)
