"""Random actions of TorchRL's envs that obey a mask written beside the observation.

An `ActionMask` transform puts such a mask into the action's spec, and what is drawn from the spec obeys it. Without one
the spec allows everything, and random actions would be moves that the env has forbidden.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase

from swath.keys import ACTION_MASK, Key, as_key, as_tuple

_KINDS = ("Categorical", "OneHot", "MultiCategorical", "MultiOneHot")


def drawing(live: Callable[[], Any]) -> Callable[[TensorDictBase], TensorDictBase]:
    """How to write random actions for the env that `live` gives into a TensorDict `[*B]`.

    The function raises `ValueError` for a mask that does not fit its action.
    """
    pairs = _pairs(live())

    def draw(root: TensorDictBase) -> TensorDictBase:
        env = live()
        root = env.rand_action(root)
        for action, mask in pairs:
            spec = env.full_action_spec[action]
            if spec.mask is None:
                root.set(action, _limited(spec, root.get(mask), (action, mask)).rand())
        return root

    return draw


def _pairs(env: Any) -> list[tuple[Key, Key]]:
    """Actions that are choices and have a mask beside them, with that mask."""
    written = {as_tuple(key) for key in (*env.observation_keys, *env.state_keys)}
    choices = [as_tuple(key) for key in env.action_keys if type(env.full_action_spec[key]) in _kinds()]
    masks = [(*path[:-1], ACTION_MASK) for path in choices]
    return [(as_key(path), as_key(mask)) for path, mask in zip(choices, masks, strict=True) if mask in written]


def _limited(spec: Any, mask: torch.Tensor, entry: tuple[Key, Key]) -> Any:
    """The spec with the mask in it; where nothing is allowed, as for agents that are absent, everything is."""
    parts = [box.n for box in spec.space.boxes] if hasattr(spec.space, "boxes") else [spec.space.n]
    lead = spec.shape if type(spec) is _kinds()[0] else spec.shape[:-1]
    shape = torch.Size((*lead, sum(parts)))
    if mask.shape[-1:] != shape[-1:] or mask.numel() != shape.numel():
        raise ValueError(
            f"random actions cannot obey {entry[1]!r} of shape {tuple(mask.shape)}: {entry[0]!r} wants one entry per "
            f"choice, {tuple(shape)}; give the collector a policy that knows this mask"
        )
    allowed = [part | ~part.any(-1, keepdim=True) for part in torch.split(mask.bool().reshape(shape), parts, dim=-1)]
    limited = spec.clone()
    limited.update_mask(torch.cat(allowed, dim=-1))
    return limited


def _kinds() -> tuple[Any, ...]:
    specs = sys.modules["torchrl.data"]
    return tuple(getattr(specs, name) for name in _KINDS)
