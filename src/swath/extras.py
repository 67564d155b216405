"""Optional packages, which are imported at first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def import_extra(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional module.

    Raises:
        ImportError: the module is not installed; the message has the reason and the command to install it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise ImportError(f'{module} is needed {purpose}: pip install "swath[{extra}]"', name=module) from None
