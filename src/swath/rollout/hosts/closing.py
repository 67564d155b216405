"""Closing envs: all of them, whatever one of them raises; and those that are given up because something else failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

_log = logging.getLogger("swath")


def close_broken(close: Callable[[], None]) -> None:
    """Close; an exception is logged."""
    try:
        close()
    except Exception:  # noqa: BLE001  whatever it is, it is logged
        _log.warning("an env that is built anew raised when it was closed", exc_info=True)


def close_all(envs: Iterable[Any]) -> None:
    """Close every env, also if one of them raises; the first error is raised at the end."""
    errors = [error for env in envs if (error := _closed(env)) is not None]
    if errors:
        raise errors[0]


@contextmanager
def closed_on_failure(envs: list[Any]) -> Iterator[None]:
    """Close these envs, and those that are added to the list meanwhile, if anything fails; that error is raised."""
    try:
        yield
    except BaseException as error:
        for env in envs:
            try:
                env.close()
            except Exception as second:  # noqa: BLE001  the first error is the one to raise
                error.add_note(f"closing {env} raised {type(second).__name__}: {second}")
        raise


def _closed(env: Any) -> Exception | None:
    try:
        env.close()
    except Exception as error:  # noqa: BLE001  raised once all are closed
        return error
    return None
