"""Exceptions and warnings of the library.

All errors derive from `SwathError`, a `RuntimeError`. Errors of user code (an env, a policy, a hook) are not wrapped:
they reach the caller with their own type and a note about worker, env and step.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class SwathError(RuntimeError):
    """Base of the library's errors."""


class Closed(SwathError):  # noqa: N818  the field's name for a state, as in `trio`
    """The service was used after `shutdown()`, or shut down during a call."""


class WorkerLate(SwathError, TimeoutError):  # noqa: N818
    """A deadline has passed.

    Attributes:
        workers: indices of the late workers.
        deadline: the time limit, in seconds.
    """

    def __init__(self, message: str, *, workers: tuple[int, ...] = (), deadline: float | None = None) -> None:
        super().__init__(message)
        self.workers, self.deadline = workers, deadline


class WorkerLost(SwathError):  # noqa: N818
    """A worker died: the result of a call to it, or a cause in `FleetFailed`.

    Attributes:
        worker: its index.
        life: number of the life that ended.
        exit: an exit code, minus a signal's number, or a description; `None` if unknown.
    """

    def __init__(self, message: str, *, worker: int = 0, life: int = 0, exit: int | str | None = None) -> None:  # noqa: A002  the field's name
        super().__init__(message)
        self.worker, self.life, self.exit = worker, life, exit


class EnvProcessLost(SwathError):  # noqa: N818
    """A process died, or was killed because it took too long, while it stepped envs; `env_processes` starts another."""


class PlacementFailed(SwathError, TimeoutError):  # noqa: N818
    """There was no room for a worker, or it was not ready in time.

    Attributes:
        asked: resources that the worker requires.
        available: free resources.
    """

    def __init__(self, message: str, *, asked: str = "", available: str = "") -> None:
        super().__init__(message)
        self.asked, self.available = asked, available


class FleetFailed(SwathError):  # noqa: N818
    """There are fewer workers than the run needs.

    Attributes:
        causes: errors of the workers that died, in the order of their deaths.
    """

    def __init__(self, message: str, *, causes: tuple[BaseException, ...] = ()) -> None:
        super().__init__(message)
        self.causes = causes


class RemoteFailure(SwathError):  # noqa: N818
    """User code in a worker raised an exception that cannot be rebuilt in this process.

    Attributes:
        type_name: of the exception.
        traceback: in the worker, as text.
    """

    def __init__(self, message: str, *, type_name: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.type_name, self.traceback = type_name, traceback


class Superseded(SwathError):  # noqa: N818
    """A rollout was given up for a newer request."""


class PayloadLost(SwathError):  # noqa: N818
    """A finished fragment was lost by its store; it is collected again."""


class NonFinite(SwathError, ValueError):  # noqa: N818
    """A NaN or an infinity with `check_finite=True`."""


class NoEffectWarning(UserWarning):
    """A setting without effect here; given once per setting and process."""


class BadAnswer(SwathError, ValueError, TypeError):  # noqa: N818
    """An env violates its API in what it returns or accepts."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Give a warning at the line that called the function which warns."""
    warnings.warn(message, category, stacklevel=3)


def warn_of_no_effect(setting: str, reason: str) -> None:
    """Give one `NoEffectWarning` per setting and process."""
    if setting not in _warned_of:
        _warned_of.add(setting)
        warn(f"{setting} has no effect here: {reason}", NoEffectWarning)


_warned_of: set[str] = set()


@contextmanager
def note_source(source: str) -> Iterator[None]:
    """Add a note with the source of an exception."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by {source}")
        raise
