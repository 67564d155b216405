"""The forms in which weights are passed to `update_policy_weights_`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

POLICY = "policy"


@dataclass(frozen=True)
class WeightArguments:
    """Weights as passed, of which at most one form may be given.

    Attributes:
        positional: first argument: a module, a TensorDict, a dict, or `None`.
        weights: a TensorDict or dict.
        policy: a module.
        model_id: which model.
        weights_dict: weights per model.
    """

    positional: Any = None
    weights: Any = None
    policy: Any = None
    model_id: str | None = None
    weights_dict: Mapping[str, Any] | None = None

    def source(self) -> Any:
        """The one source that was given, or `None`.

        Raises:
            ValueError: two were given; the message names both.
            KeyError: a model that this collector does not have.
        """
        given = {
            name: value
            for name, value in (
                ("policy_or_weights", self.positional),
                ("weights", self.weights),
                ("policy", self.policy),
                ("weights_dict", self.weights_dict),
            )
            if value is not None
        }
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given; give one of them")
        if self.weights_dict is not None:
            if self.model_id is not None:
                raise ValueError("weights_dict and model_id are both given; the dict names the models")
            require_model(*self.weights_dict)
            return self.weights_dict.get(POLICY)
        require_model(*(() if self.model_id is None else (self.model_id,)))
        return _of_worker_0(next(iter(given.values()), None))


def renamed(kwargs: dict[str, Any]) -> Any:
    """The value of the old name `policy_weights`, if it was used.

    Raises:
        TypeError: any other keyword.
    """
    unknown = sorted(set(kwargs) - {"policy_weights"})
    if unknown:
        raise TypeError(f"update_policy_weights_() got unexpected keyword arguments {unknown}")
    if "policy_weights" in kwargs:
        warnings.warn("policy_weights= is now policy_or_weights=", DeprecationWarning, stacklevel=3)
    return kwargs.get("policy_weights")


def _of_worker_0(weights: Any) -> Any:
    """`{worker: weights}` for the one worker there is."""
    if not isinstance(weights, dict) or not any(isinstance(key, int) for key in weights):
        return weights
    if not all(isinstance(key, int) for key in weights):
        raise ValueError(f"weights mix worker numbers and names as keys: {list(weights)}; use one kind")
    if set(weights) != {0}:
        raise ValueError(f"weights are for the workers {sorted(weights)}; this collector has worker 0 only")
    return weights[0]


def require_model(*models: str) -> None:
    """Raise `KeyError` for a model that this collector does not have."""
    unknown = sorted(set(models) - {POLICY})
    if unknown:
        raise KeyError(f"no model {unknown}; known are [{POLICY!r}]")
