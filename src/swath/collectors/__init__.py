"""Collectors, with the names that TorchRL has in its package of collectors; loaded at first use."""

from __future__ import annotations

from swath.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
