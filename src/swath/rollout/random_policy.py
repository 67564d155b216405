"""Random actions, uniform over any action space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from swath.keys import ACTION_MASK
from swath.rollout.memory import torch_dtype
from swath.rollout.spaces import Array, Leaves, action_leaves


class RandomPolicy:
    """A policy that draws actions uniformly from an action space, by torch's global generator.

    Unbounded sides of a Box are drawn as gymnasium does: normal if both are open, exponential if one is. An observation
    entry `"action_mask"` `[*B, n]` restricts a Discrete action to its non-zero entries; for a MultiDiscrete action the
    masks of its parts are concatenated, `[*B, Σnᵢ]`. A mask that allows nothing, as after an end, allows all.
    In envs of TorchRL the same holds for each action with an entry `"action_mask"` in its group.

    Args:
        action_spec: a gymnasium space; `None` takes the action space of the env.
    """

    def __init__(self, action_spec: spaces.Space[Any] | None = None) -> None:
        self.action_spec = action_spec

    def sampler(
        self, space: spaces.Space[Any], num_envs: int, device: torch.device | None = None
    ) -> Callable[[torch.Tensor | None], Leaves]:
        """Return a function that draws action leaves `[B, …]`, given an action mask `[B, n]` or `None`.

        The leaves are arrays, or tensors on a device.

        The function raises `ValueError` for a mask that does not fit the space.
        """
        space = self.action_spec if self.action_spec is not None else space
        leaves = action_leaves(space)
        samplers = [_leaf_sampler(leaf.space, (num_envs, *leaf.shape), device) for leaf in leaves]
        dtypes = [torch_dtype(leaf.dtype) for leaf in leaves]

        def draw(mask: torch.Tensor | None) -> Leaves:
            actions = [sample() for sample in samplers] if mask is None else [_sample_masked(space, mask)]
            if device is not None:
                return [rows.to(dtype) for rows, dtype in zip(actions, dtypes, strict=True)]
            return [rows.numpy().astype(leaf.dtype, copy=False) for leaf, rows in zip(leaves, actions, strict=True)]

        return draw


def _choices(space: spaces.Space[Any]) -> tuple[Array, Any]:
    """Return the number of values and the first value of each element of an action; no values for a Box."""
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
        name: of the policy, for the message.
    """
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or tuple(shape) != (_choices(space)[0].sum(),):
        refused = f"{name} cannot obey {ACTION_MASK!r} of shape {tuple(shape)} for {space}"
        raise ValueError(f"{refused}: it needs one entry per choice; give the collector a policy that knows this one")


def _sample_masked(space: spaces.Space[Any], mask: torch.Tensor) -> torch.Tensor:
    require_mask(space, mask.shape[1:], "RandomPolicy")
    sizes, start = _choices(space)
    choices = []
    for part in torch.split((mask != 0).double(), sizes.reshape(-1).tolist(), dim=1):
        none_allowed = part.sum(dim=1, keepdim=True) == 0  # after an end, where the action does not matter
        choices.append(torch.multinomial(part + none_allowed, 1))
    return torch.cat(choices, dim=1).reshape(-1, *sizes.shape) + torch.as_tensor(start, device=mask.device)


def _leaf_sampler(
    space: spaces.Space[Any], shape: tuple[int, ...], device: torch.device | None = None
) -> Callable[[], torch.Tensor]:
    """Return a function that draws `start + span * noise`.

    The noise is uniform in [0, 1) between two bounds, exponential beyond one bound, else normal.
    """
    integer = space.dtype is not None and np.issubdtype(space.dtype, np.integer)
    span, start = _choices(space)
    bounded, half = np.ones(span.shape, np.bool_), np.zeros(span.shape, np.bool_)
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        has_low, has_high = space.bounded_below, space.bounded_above
        bounded, half = has_low & has_high, has_low ^ has_high
        start = np.where(has_low, low, np.where(has_high, high, 0))
        span = np.where(bounded, high - low + integer, np.where(has_high, -1, 1))
    begin, width, is_bounded, is_half = (
        torch.as_tensor(value, device=device) for value in (start, span, bounded, half)
    )
    all_bounded = bool(bounded.all())

    def draw() -> torch.Tensor:
        noise = torch.rand(shape, dtype=torch.float64, device=device)
        if not all_bounded:
            exponential = noise.new_empty(shape).exponential_()
            open_side = torch.where(is_half, exponential, torch.randn(shape, device=device).double())
            noise = torch.where(is_bounded, noise, open_side)
        values = begin + width * noise
        return values.floor() if integer else values

    return draw
