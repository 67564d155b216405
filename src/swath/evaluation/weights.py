"""From what is handed in as weights to what a service keeps: copied at the call, checked where they are used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tensordict import TensorDict

from swath.errors import warn_of_no_effect
from swath.evaluation.env_parts import has_moments, moments_of
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.queue import Brief
from swath.evaluation.setting import module_of
from swath.weights.manifest import Manifest, snapshot_of, take
from swath.weights.snapshot import EXTRA_STATE, POLICY, Snapshot, flat_weights, is_extra


def brief_of(options: EvaluatorOptions, weights: Any, weights_dict: Mapping[str, Any] | None) -> Brief:
    """The weights of one evaluation; those of the policy's module as they are now if none are given.

    Args:
        options: of the evaluator.
        weights: for the policy; a module, a TensorDict, a mapping, or a snapshot.
        weights_dict: by model id; what it has for the policy counts.

    Raises:
        TypeError: not weights.
        ValueError: statistics that are in memory which the training writes.
    """
    given = {} if weights_dict is None else _by_id(weights_dict)
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
    return Brief({**own, **sent}, weighted=bool(sent))


def _by_id(weights_dict: Any) -> dict[str, Any]:
    if not isinstance(weights_dict, Mapping) or not all(isinstance(model_id, str) for model_id in weights_dict):
        raise TypeError(f"weights_dict is {weights_dict!r}; give a dict of weights by model id")
    return dict(weights_dict)


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


class SentWeights:
    """The weights that workers were sent, as their models want them.

    Args:
        declared: model ids that can be sent; `None` for any.
        ask: calls a method of any worker.

    Attributes:
        held: the newest by model id, also for workers to come.
    """

    def __init__(self, declared: Collection[str] | None, ask: Callable[..., Any]) -> None:
        self._declared, self._ask = declared, ask
        self._manifests: dict[str, Manifest] = {}
        self.held: dict[str, Snapshot] = {}

    def fitted(self, models: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
        """Weights to be published, all of them checked.

        Raises:
            KeyError, ValueError, TypeError: weights that do not fit; nothing has changed.
        """
        if self._declared is not None and (unknown := sorted(set(models) - set(self._declared))):
            raise KeyError(f"weights for {unknown}, but weight_sync_schemes declare {sorted(self._declared)}")
        fitted = {}
        for model_id, weights in models.items():
            if (fitting := take(weights, self._manifest(model_id))) is None:
                raise TypeError(f"weights were sent for {model_id!r}, which has none; leave them out")
            fitted[model_id] = fitting
        extras = {model_id: each.extras for model_id, each in fitted.items() if each.extras and model_id != POLICY}
        if extras:
            self._ask("check", extras)
        self.held.update(fitted)
        return fitted

    def states(self) -> dict[str, dict[str, Any]]:
        """The state of the policy, and of other models that were sent weights, under all names they have for them."""
        states = {}
        for model_id, weights in self.held.items():
            values, aliases = weights.weights(), self._manifest(model_id).aliases
            states[model_id] = {**values, **{name: values[first] for name, first in aliases.items() if first in values}}
        return states if POLICY in states else {POLICY: self._ask("weights", POLICY), **states}

    def _manifest(self, model_id: str) -> Manifest:
        if model_id not in self._manifests:
            self._manifests |= self._ask("manifests", [model_id])
        return self._manifests[model_id]
