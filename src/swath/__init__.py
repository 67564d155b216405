"""Swath: experience from many workers for PyTorch reinforcement learning, and evaluation beside the training.

Public names are loaded at first use, so that `import swath` costs a few milliseconds and imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from swath._version import __version__

if TYPE_CHECKING:
    from swath.rollout.exploration import ExplorationType

_HOME = {
    "ExplorationType": "swath.rollout.exploration",
}

__all__ = ["ExplorationType", "__version__"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'swath' has no attribute {name!r}; public names: {', '.join(sorted(_HOME))}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
