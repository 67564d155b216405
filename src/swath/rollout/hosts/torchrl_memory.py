"""Transforms around a TorchRL env that supply what a policy with a memory reads and the env does not write.

env ──▶ InitTracker ──▶ primers of the policy's modules ──▶ env that writes `is_init` and the state that comes first
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from swath.keys import IS_INIT, as_tuple

_MAKES_A_PRIMER = "make_tensordict_primer"


def with_memory(env: Any, policy: Any) -> Any:
    """The env with the transforms that are missing for this policy; the env itself if none is.

    Raises:
        Exception: what a module raised that cannot say what its state begins with, with a note.
    """
    missing = list(_missing(env, policy)) if isinstance(policy, nn.Module) else []
    if not missing:
        return env
    envs = importlib.import_module("torchrl.envs")
    return envs.TransformedEnv(env, envs.Compose(*missing), auto_unwrap=True)


def _missing(env: Any, policy: nn.Module) -> Iterator[Any]:
    written = {as_tuple(key) for key in (*env.observation_keys, *env.state_keys)}
    reads_init = any(as_tuple(key)[-1] == IS_INIT for key in getattr(policy, "in_keys", ()))
    if reads_init and not any(key[-1] == IS_INIT for key in written):
        yield importlib.import_module("torchrl.envs").InitTracker()
    for primer in _primers(policy):
        if not {as_tuple(key) for key in primer.primers.keys(include_nested=True, leaves_only=True)} <= written:
            yield primer


def _primers(policy: nn.Module) -> Iterator[Any]:
    for module in policy.modules():
        make = getattr(module, _MAKES_A_PRIMER, None)
        if make is None:
            continue
        try:
            yield make()
        except Exception as error:
            error.add_note(
                f"raised while {type(module).__name__} made the transform for its state; give the env one by hand, and "
                "leave auto_register_policy_transforms at None"
            )
            raise
