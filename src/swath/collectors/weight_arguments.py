"""The forms in which weights are passed to `update_policy_weights_`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swath.errors import warn
from swath.weights.names import POLICY


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

    @property
    def empty(self) -> bool:
        """Whether no source is given."""
        return not self._given()

    def by_model(self) -> Mapping[str, Any]:
        """The one source that was given, by model; `None` for a model whose weights are to be fetched.

        Raises:
            TypeError: `weights_dict` is no dict.
            ValueError: two were given; the message names both.
        """
        given = self._given()
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given; give one of them")
        if self.weights_dict is None:
            return {POLICY if self.model_id is None else self.model_id: next(iter(given.values()), None)}
        if not isinstance(self.weights_dict, Mapping):
            raise TypeError(
                f"weights_dict is of type {type(self.weights_dict).__name__}; it must be a dict of weights by model"
            )
        if self.model_id is not None:
            raise ValueError("weights_dict and model_id are both given; the dict names the models")
        return self.weights_dict

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
        warn("policy_weights= is now policy_or_weights=", DeprecationWarning)
    return kwargs.get("policy_weights")
