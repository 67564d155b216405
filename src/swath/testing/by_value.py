"""Modules whose functions and classes are sent to other processes whole, because these could not import them."""

from __future__ import annotations

import sys
from types import ModuleType

import cloudpickle


def pickle_by_value(module: ModuleType) -> None:
    """Send what is in it whole from now on, also through Ray, which has a cloudpickle of its own."""
    cloudpickle.register_pickle_by_value(module)
    if "ray.cloudpickle" in sys.modules:
        sys.modules["ray.cloudpickle"].register_pickle_by_value(module)
