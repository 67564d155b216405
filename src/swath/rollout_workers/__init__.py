"""The face for users of RLlib's `RolloutWorker` and `WorkerSet`, over the same core as the collectors.

Being built: what is here works for itself and is tested; the worker that joins it is still to come.

Public names are loaded at first use. Each has two lines here: an import for type checkers, and its home.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swath.rollout_workers.env_context import EnvContext as EnvContext

_HOME = {
    "EnvContext": "swath.rollout_workers.env_context",
}


if not TYPE_CHECKING:  # a type checker must see which names there are not

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {sorted(_HOME)}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(_HOME)
