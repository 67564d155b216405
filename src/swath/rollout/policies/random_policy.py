"""Actions drawn uniformly from the action space: the policy of whoever has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from swath.keys import ACTION_MASK
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
            return [_masked(leaves[0], _fitting(mask, space))]

        return draw


def _fitting(mask: torch.Tensor, space: spaces.Space[Any]) -> torch.Tensor:
    """The mask as weights `[B, n]`, float64."""
    width = _width(space)
    if tuple(mask.shape[1:]) != (width,):
        raise ValueError(
            f"RandomPolicy cannot obey {ACTION_MASK!r} of shape {tuple(mask.shape[1:])} for {space}: a mask has one "
            "entry per choice of a Discrete or MultiDiscrete action; give the collector a policy that knows this one"
        )
    return (mask != 0).double()


def _width(space: spaces.Space[Any]) -> int | None:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else None


def _masked(leaf: Leaf, weights: torch.Tensor) -> Any:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return _as(leaf, torch.multinomial(_open(weights), 1).squeeze(-1) + int(space.start))
    assert isinstance(space, spaces.MultiDiscrete)
    parts = torch.split(weights, space.nvec.reshape(-1).tolist(), dim=1)
    chosen = torch.cat([torch.multinomial(_open(part), 1) for part in parts], dim=1)
    return _as(leaf, chosen.reshape(-1, *leaf.shape) + torch.as_tensor(space.start))


def _open(weights: torch.Tensor) -> torch.Tensor:
    """Ones where nothing is allowed: after an end, where the action does not matter."""
    return weights + (weights.sum(-1, keepdim=True) == 0)


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


def _box(space: spaces.Box, shape: Sequence[int]) -> torch.Tensor:
    low, high = torch.as_tensor(space.low, dtype=torch.float64), torch.as_tensor(space.high, dtype=torch.float64)
    above, below = torch.as_tensor(space.bounded_below), torch.as_tensor(space.bounded_above)
    integer = np.issubdtype(np.dtype(space.dtype), np.integer)
    span = torch.where(above & below, high - low + (1.0 if integer else 0.0), torch.zeros_like(low))
    uniform = torch.rand(tuple(shape), dtype=torch.float64) * span + torch.where(above, low, torch.zeros_like(low))
    if bool((above & below).all()):
        return uniform.floor() if integer else uniform
    open_side = torch.empty(tuple(shape), dtype=torch.float64).exponential_()
    half = torch.where(above, low + open_side, high - open_side)
    drawn = torch.where(above & below, uniform, torch.where(above | below, half, torch.randn(tuple(shape)).double()))
    return drawn.floor() if integer else drawn


def _as(leaf: Leaf, drawn: torch.Tensor) -> Any:
    return drawn.numpy().astype(leaf.dtype, copy=False)
