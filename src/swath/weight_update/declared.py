"""Schemes by model id, as users declare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swath.weight_update.scheme import WeightSyncScheme


def require_schemes(name: str, schemes: Any) -> dict[str, WeightSyncScheme]:
    """The same as a new dict; empty for `None`.

    Raises:
        TypeError: not a dict of schemes by model.
        ValueError: one scheme for two models.
    """
    if schemes is None:
        return {}
    if not isinstance(schemes, Mapping):
        raise TypeError(f"{name} is of type {type(schemes).__name__}; give a dict of schemes by model id")
    for model_id, scheme in schemes.items():
        if not (isinstance(model_id, str) and isinstance(scheme, WeightSyncScheme)):
            raise TypeError(f"{name} has {model_id!r}: {scheme!r}; give schemes by model id, as 'policy'")
    if len({id(scheme) for scheme in schemes.values()}) < len(schemes):
        raise ValueError(f"{name} has one scheme for several models; make one for each")
    return dict(schemes)
