"""From what is handed in as weights to what a service keeps: copied at the call, checked where they are used."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict

from swath.errors import warn_of_no_effect
from swath.evaluate.service import Brief
from swath.weights.manifest import Manifest
from swath.weights.names import EXTRA_STATE, flat_weights, is_extra
from swath.weights.snapshot import Snapshot, copied

POLICY = "policy"


def brief_of(weights: Any, weights_dict: Mapping[str, Any] | None, otherwise: Any = None) -> Brief:
    """What one evaluation is told of weights.

    Args:
        weights: for the policy; a module, a TensorDict, a mapping, or a snapshot.
        weights_dict: by model id; what it has for the policy counts.
        otherwise: the module whose weights are taken as they are now if none are given; `None` for none.

    Raises:
        TypeError: not weights.
    """
    given = {} if weights_dict is None else dict(weights_dict)
    if weights is not None and given.setdefault(POLICY, weights) is not weights:
        warn_of_no_effect("weights", "weights_dict has 'policy', which counts")
    if given:
        return Brief({model_id: snapshot_of(source) for model_id, source in given.items()}, weighted=True)
    if isinstance(otherwise, torch.nn.Module) and otherwise.state_dict():
        return Brief({POLICY: snapshot_of(otherwise)})
    return Brief()


def snapshot_of(source: Any) -> Snapshot:
    """A copy of weights, whatever model they are for.

    Raises:
        TypeError: not weights.
    """
    if isinstance(source, Snapshot):
        return source
    return copied(flat_weights(source), Manifest.of_weights(source))


def extract_weights(policy: Any) -> TensorDict:
    """Parameters and buffers of a policy, that share no memory with it.

    Returns:
        Nested TensorDict of batch size `[]` on the CPU; a module's extra state is under `"__extra_state__"`.

    Raises:
        TypeError: it has no weights.
    """
    weights = TensorDict(batch_size=[])
    for name, value in flat_weights(policy).items():
        *path, last = name.split(".")
        if is_extra(name):
            weights.set_non_tensor((*path, EXTRA_STATE), copy.deepcopy(value))
        else:
            weights.set((*path, last), value.cpu().clone())
    return weights
