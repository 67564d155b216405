"""What envs say beside their observations: one mapping per env, however a vector env has batched them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from swath.rollout.hosts.base import Infos

_FINAL = "final_info"


def info_of(infos: Infos, env: int) -> Mapping[str, Any]:
    """What one env said in the step; at the end of an episode what its last step said, not the reset after it.

    A vector env's batch has an entry `_name` beside each `name` that says which envs it is from; entries without one
    are from all. What the vector env itself says beside the envs' final infos is kept.
    """
    if not isinstance(infos, Mapping):
        return infos[env] if infos else {}
    row = _row(infos, env)
    final = row.pop(_FINAL, None)
    if not isinstance(final, dict):
        return row
    # After a reset in the same step the other entries are those of the new episode, but for what wrappers of the whole
    # vector env have added about the one that ended.
    return {**{name: value for name, value in row.items() if name not in final}, **final}


def _row(infos: Mapping[str, Any], env: int) -> dict[str, Any]:
    row = {}
    for name, value in infos.items():
        mask = infos.get(f"_{name}")
        if _is_mask_of(infos, name) or (mask is not None and not mask[env]):
            continue
        row[name] = _row(value, env) if isinstance(value, Mapping) else _at(value, env)
    return row


def _is_mask_of(infos: Mapping[str, Any], name: str) -> bool:
    return name.startswith("_") and name[1:] in infos


def _at(value: Any, env: int) -> Any:
    """A batch's row; what is no batch is everybody's."""
    return value[env] if isinstance(value, np.ndarray | list | tuple) and env < len(value) else value
