"""Random actions: uniform over any action space, where there is no policy, and in the place of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from swath.keys import ACTION_MASK
from swath.rollout.spaces import Array, Leaves, action_leaves


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
        draws = [_drawing(leaf.space, (num_envs, *leaf.shape)) for leaf in leaves]

        def draw(mask: torch.Tensor | None) -> Leaves:
            drawn = [each() for each in draws] if mask is None else [_masked(space, mask)]
            return [rows.numpy().astype(leaf.dtype, copy=False) for leaf, rows in zip(leaves, drawn, strict=True)]

        return draw


def _choices(space: spaces.Space[Any]) -> tuple[Array, Any]:
    """How many values there are at each place, and the first of them; of a Box none."""
    if isinstance(space, spaces.Discrete):
        return np.array(space.n), space.start
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec, space.start
    return np.full(space.shape or (), 2 if isinstance(space, spaces.MultiBinary) else 0), 0


def require_mask(space: spaces.Space[Any], shape: Sequence[int], name: str) -> None:
    """Raise `ValueError` unless a mask of this shape has one entry per choice of the action space.

    Args:
        space: of actions.
        shape: of one env's mask.
        name: of what obeys it, for the message.
    """
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or tuple(shape) != (_choices(space)[0].sum(),):
        refused = f"{name} cannot obey {ACTION_MASK!r} of shape {tuple(shape)} for {space}"
        raise ValueError(f"{refused}: it needs one entry per choice; give the collector a policy that knows this one")


def _masked(space: spaces.Space[Any], mask: torch.Tensor) -> torch.Tensor:
    require_mask(space, mask.shape[1:], "RandomPolicy")
    sizes, start = _choices(space)
    chosen = []
    for part in torch.split((mask != 0).double(), sizes.reshape(-1).tolist(), dim=1):
        none_allowed = part.sum(dim=1, keepdim=True) == 0  # after an end, where the action does not matter
        chosen.append(torch.multinomial(part + none_allowed, 1))
    return torch.cat(chosen, dim=1).reshape(-1, *sizes.shape) + torch.as_tensor(start)


def _drawing(space: spaces.Space[Any], shape: tuple[int, ...]) -> Callable[[], torch.Tensor]:
    """How to draw `start + span * noise`: even noise in [0, 1) between two bounds, positive behind one, else normal."""
    integer = space.dtype is not None and np.issubdtype(space.dtype, np.integer)
    span, start = _choices(space)
    bounded, half = np.ones(span.shape, np.bool_), np.zeros(span.shape, np.bool_)
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        below, above = space.bounded_below, space.bounded_above
        bounded, half = below & above, below ^ above
        start = np.where(below, low, np.where(above, high, 0))
        span = np.where(bounded, high - low + integer, np.where(above, -1, 1))
    begin, width, is_bounded, is_half = map(torch.as_tensor, (start, span, bounded, half))

    def draw() -> torch.Tensor:
        noise = torch.rand(shape, dtype=torch.float64)
        if not is_bounded.all():
            open_side = torch.where(is_half, noise.new_empty(shape).exponential_(), torch.randn(shape).double())
            noise = torch.where(is_bounded, noise, open_side)
        drawn = begin + width * noise
        return drawn.floor() if integer else drawn

    return draw
