"""From what is handed in as weights to what a service keeps: copied at the call, checked where they are used."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict

from swath.errors import warn_of_no_effect
from swath.evaluation.env_parts import has_moments, moments_of
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.queue import Request
from swath.evaluation.setting import module_of
from swath.weights.manifest import snapshot_of
from swath.weights.snapshot import EXTRA_STATE, POLICY, flat_weights, is_extra


def request_of(
    options: EvaluatorOptions, weights: Any, weights_dict: Mapping[str, Any] | None, step: int | None = None
) -> Request:
    """One evaluation with these weights; those of the policy's module as they are now if none are given.

    Args:
        options: of the evaluator.
        weights: for the policy; a module, a TensorDict, a mapping, or a snapshot.
        weights_dict: by model id; what it has for the policy counts.
        step: the training step; `None`: the next of the count.

    Raises:
        TypeError: not weights.
        ValueError: statistics that are in memory which the training writes.
    """
    given = {} if weights_dict is None else weights_dict
    if not isinstance(given, Mapping) or not all(isinstance(model_id, str) for model_id in given):
        raise TypeError(f"weights_dict is {weights_dict!r}; give a dict of weights by model id")
    given = dict(given)
    of_env = [model_id for model_id in given if model_id != POLICY]
    if options.is_shared and of_env:
        raise ValueError(f"statistics of an EnvCreator are shared with training; leave {', '.join(of_env)} out")
    if weights is not None and given.setdefault(POLICY, weights) is not weights:
        warn_of_no_effect("weights", "weights_dict has 'policy', which counts")
    schemes = options.schemes or {}
    sent = {
        model_id: snapshot_of(moments_of(source) if model_id != POLICY and has_moments(source) else source)
        for model_id, source in given.items()
        if model_id not in schemes or schemes[model_id].sends
    }
    module = None if POLICY in given else module_of(options.policy)
    own = {} if module is None or not module.state_dict() else {POLICY: snapshot_of(module)}
    return Request(step, models={**own, **sent}, weighted=bool(sent))


def extract_weights(policy: Any) -> TensorDict:
    """Parameters and buffers of a policy, that share no memory with it.

    Returns:
        Nested TensorDict of batch size `[]` on the CPU; a module's extra state is under `"__extra_state__"`.

    Raises:
        TypeError: it has no weights.
    """
    weights = TensorDict(batch_size=[], device="cpu")
    for name, value in flat_weights(policy).items():
        *path, last = name.split(".")
        if is_extra(name):
            weights.set_non_tensor((*path, EXTRA_STATE), copy.deepcopy(value))
        else:
            weights.set((*path, last), value.cpu().clone())
    return weights
