"""Closing envs that are given up because they failed: what they raise then must not keep others from being built."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger("swath")


def close_broken(close: Callable[[], None]) -> None:
    """Close; an exception is logged."""
    try:
        close()
    except Exception:  # noqa: BLE001  whatever it is, it is logged
        _log.warning("an env that is built anew raised when it was closed", exc_info=True)
