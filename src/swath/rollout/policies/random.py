"""Actions drawn uniformly from the action space: where there is no policy, and in the place of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from swath.keys import ACTION_MASK
from swath.rollout.buffer import column_of
from swath.rollout.hosts.base import ArraySpec
from swath.rollout.policies.calling import BoundPolicy
from swath.rollout.policies.recurrent import Memory
from swath.rollout.spaces import Leaf, Leaves, action_leaves


class RandomPolicy:
    """Uniform over the action space, by torch's global generator.

    Unbounded sides of a Box are drawn as gymnasium does: normal if both are open, exponential if one is. An observation
    entry `"action_mask"` `[*B, n]` restricts a Discrete action to its non-zero entries; for a MultiDiscrete action the
    masks of its parts stand side by side, `[*B, Σnᵢ]`. Where a mask allows nothing, as after an end, all is allowed.
    In envs of TorchRL the same holds for each action that has an entry `"action_mask"` beside it, also in a group.

    Args:
        action_spec: a gymnasium space; `None` takes that of the env the policy is used with.
    """

    def __init__(self, action_spec: spaces.Space[Any] | None = None) -> None:
        self.action_spec = action_spec

    def sampler(self, space: spaces.Space[Any], num_envs: int) -> Callable[[torch.Tensor | None], Leaves]:
        """How to draw action leaves `[B, …]` for this many envs, given the action mask `[B, n]` if there is one.

        The function raises `ValueError` for a mask that does not fit the space.
        """
        space = self.action_spec if self.action_spec is not None else space
        leaves = action_leaves(space)

        def draw(mask: torch.Tensor | None) -> Leaves:
            if mask is None:
                return [_draw(leaf, num_envs) for leaf in leaves]
            return [_masked(leaves[0], space, mask)]

        return draw


class RandomActions(BoundPolicy):
    """Random actions for a host of arrays.

    Args:
        policy: draws them.
        spec: the envs.
        like: the policy in whose place they are; what only that writes is zero, so that keys stay.
    """

    def __init__(self, policy: RandomPolicy, spec: ArraySpec, like: BoundPolicy | None = None) -> None:
        self._sample = policy.sampler(spec.action_space, spec.num_envs)
        self._mask_at = spec.observed.index(ACTION_MASK) if ACTION_MASK in spec.observed else None
        if like is None:
            columns = [column_of(leaf) for leaf in self._sample(None)]
            super().__init__(spec.acted, columns, Memory((spec.num_envs,)))
        else:
            super().__init__(like.keys, like.columns, like.memory)
        n_outputs = len(self.columns) - len(self.memory.keys)
        self._zeros = [column.allocate(1)[:, 0] for column in self.columns[len(spec.action) : n_outputs]]
        for zero in self._zeros:
            zero[...] = 0

    def __call__(self, observation: Leaves) -> Leaves:
        """Random actions, zeros, and what was remembered."""
        mask = None if self._mask_at is None else torch.from_numpy(observation[self._mask_at])
        outputs = [*self._sample(mask), *self._zeros]
        return [*outputs, *self.memory.keep(outputs)]


def _masked(leaf: Leaf, space: spaces.Space[Any], mask: torch.Tensor) -> Any:
    sizes, start = [], np.zeros(())
    if isinstance(space, spaces.Discrete):
        sizes, start = [int(space.n)], space.start
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, start = space.nvec.reshape(-1).tolist(), space.start
    if not sizes or tuple(mask.shape[1:]) != (sum(sizes),):
        raise ValueError(
            f"RandomPolicy cannot obey {ACTION_MASK!r} of shape {tuple(mask.shape[1:])} for {space}: a mask has one "
            "entry per choice of a Discrete or MultiDiscrete action; give the collector a policy that knows this one"
        )
    chosen = []
    for part in torch.split((mask != 0).double(), sizes, dim=1):
        none_allowed = part.sum(dim=1, keepdim=True) == 0  # after an end, where the action does not matter
        chosen.append(torch.multinomial(part + none_allowed, 1))
    return _as(leaf, torch.cat(chosen, dim=1).reshape(-1, *leaf.shape) + torch.as_tensor(start))


def _draw(leaf: Leaf, num_envs: int) -> Any:
    space = leaf.space
    shape = (num_envs, *leaf.shape)
    if isinstance(space, spaces.Discrete):
        return _as(leaf, torch.randint(int(space.n), (num_envs,)) + int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = torch.as_tensor(space.nvec), torch.as_tensor(space.start)
        return _as(leaf, (torch.rand(shape, dtype=torch.float64) * nvec).long() + start)
    if isinstance(space, spaces.MultiBinary):
        return _as(leaf, torch.randint(0, 2, shape))
    assert isinstance(space, spaces.Box)
    return _as(leaf, _box(space, shape))


def _box(space: spaces.Box, shape: tuple[int, ...]) -> torch.Tensor:
    low, high = torch.as_tensor(space.low, dtype=torch.float64), torch.as_tensor(space.high, dtype=torch.float64)
    above, below = torch.as_tensor(space.bounded_below), torch.as_tensor(space.bounded_above)
    integer = np.issubdtype(np.dtype(space.dtype), np.integer)
    span = torch.where(above & below, high - low + (1.0 if integer else 0.0), 0.0)
    uniform = torch.rand(shape, dtype=torch.float64) * span + torch.where(above, low, 0.0)
    if bool((above & below).all()):
        return uniform.floor() if integer else uniform
    open_side = torch.empty(shape, dtype=torch.float64).exponential_()
    half = torch.where(above, low + open_side, high - open_side)
    drawn = torch.where(above & below, uniform, torch.where(above | below, half, torch.randn(shape).double()))
    return drawn.floor() if integer else drawn


def _as(leaf: Leaf, drawn: torch.Tensor) -> Any:
    return drawn.numpy().astype(leaf.dtype, copy=False)
