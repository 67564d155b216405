"""Swath: experience from many workers for PyTorch reinforcement learning, and evaluation beside the training.

Public names are loaded at first use, so that `import swath` costs a few milliseconds and imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from swath._version import __version__

if TYPE_CHECKING:
    from swath.evaluate.comparison import Comparison, compare
    from swath.evaluate.result import EvalResult
    from swath.rollout.exploration import ExplorationType

_HOME = {
    "Comparison": "swath.evaluate.comparison",
    "EvalResult": "swath.evaluate.result",
    "ExplorationType": "swath.rollout.exploration",
    "compare": "swath.evaluate.comparison",
}

__all__ = ["Comparison", "EvalResult", "ExplorationType", "__version__", "compare"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'swath' has no attribute {name!r}; public names: {', '.join(sorted(_HOME))}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
