"""Optional packages: asked for where they are used, and named with the command that installs them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def need(module: str, *, extra: str, why: str) -> ModuleType:
    """Import an optional module.

    Raises:
        ImportError: it is not installed; the message says what needs it and how to install it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise ImportError(f'{module} is needed {why}: pip install "swath[{extra}]"', name=module) from None
