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
        """The one source for the one model of a collector with one worker, or `None`.

        Raises:
            ValueError: two were given; the message names both. Or weights for other workers.
            KeyError: a model that this collector does not have.
        """
        by_model = self.by_model()
        require_model(*by_model)
        weights, each = by_model.get(POLICY), self.per_worker()
        if each is None:
            return weights
        if set(each) != {0}:
            raise ValueError(f"weights are for the workers {sorted(each)}; this collector has worker 0 only")
        return each[0]

    @property
    def empty(self) -> bool:
        """Whether no source is given."""
        return not self._given()

    def by_model(self) -> Mapping[str, Any]:
        """The one source that was given, by model; `None` for a model whose weights are to be fetched.

        Raises:
            ValueError: two were given; the message names both.
        """
        given = self._given()
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given; give one of them")
        if self.weights_dict is None:
            return {POLICY if self.model_id is None else self.model_id: next(iter(given.values()), None)}
        if self.model_id is not None:
            raise ValueError("weights_dict and model_id are both given; the dict names the models")
        return self.weights_dict

    def per_worker(self) -> Mapping[int, Any] | None:
        """`{worker: weights}`, if that was given.

        Raises:
            ValueError: worker numbers and names are mixed.
        """
        weights = next(iter(self._given().values()), None)
        if not isinstance(weights, dict) or not any(isinstance(key, int) for key in weights):
            return None
        if not all(isinstance(key, int) for key in weights):
            raise ValueError(f"weights mix worker numbers and names as keys: {list(weights)}; use one kind")
        return weights

    def _given(self) -> dict[str, Any]:
        forms = ("positional", "weights", "policy", "weights_dict")
        names = {"positional": "policy_or_weights"}
        return {names.get(form, form): getattr(self, form) for form in forms if getattr(self, form) is not None}


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


def require_model(*models: str) -> None:
    """Raise `KeyError` for a model that this collector does not have."""
    unknown = sorted(set(models) - {POLICY})
    if unknown:
        raise KeyError(f"no model {unknown}; known are [{POLICY!r}]")
