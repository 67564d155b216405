"""What is kept of a collector: its state without the weights, which are kept once and not by every worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

WEIGHTS = "policy_state_dict"


def without_weights(state: Any) -> Any:
    """The state of one worker or of many, `None` in the place of each worker's weights."""
    return _with(state, None)


def with_weights(state: Any, weights: Mapping[str, Any]) -> Any:
    """The state that `without_weights` left, complete again."""
    return _with(state, weights)


def as_plain(state: Any) -> Any:
    """The state with numbers for its tensors, which have one each."""
    if isinstance(state, Mapping):
        return {name: as_plain(part) for name, part in state.items()}
    if isinstance(state, list):
        return [as_plain(part) for part in state]
    return state.item() if isinstance(state, torch.Tensor) else state


def _with(state: Any, weights: Any) -> Any:
    if isinstance(state, Mapping):
        return {name: weights if name == WEIGHTS else _with(part, weights) for name, part in state.items()}
    return [_with(part, weights) for part in state] if isinstance(state, list) else state
