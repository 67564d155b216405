"""Every exception and warning of the library, one meaning each.

All errors derive from `SwathError`, a `RuntimeError`. Errors of user code (an env, a policy, a hook) are not wrapped:
they reach the caller as their own type with a note that says where they happened.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class SwathError(RuntimeError):
    """Base of the library's own errors."""


class Closed(SwathError):  # noqa: N818  the field's name for a state, as in `trio`
    """The service was used after `shutdown()`, or shut down during a call."""


class WorkerLate(SwathError, TimeoutError):  # noqa: N818
    """A deadline passed and nothing could stand in.

    Attributes:
        workers: who is late, by index.
        deadline: the time allowed, in seconds.
    """

    def __init__(self, message: str, *, workers: tuple[int, ...] = (), deadline: float | None = None) -> None:
        super().__init__(message)
        self.workers = workers
        self.deadline = deadline


class WorkerLost(SwathError):  # noqa: N818
    """A worker died: the answer to a call for it alone, or a cause in `FleetFailed`.

    Attributes:
        worker: its index.
        life: which of its lives ended.
        exit: how it ended, as far as that is known: an exit code, minus a signal's number, or words.
    """

    def __init__(self, message: str, *, worker: int = 0, life: int = 0, exit: int | str | None = None) -> None:  # noqa: A002  the field's name
        super().__init__(message)
        self.worker = worker
        self.life = life
        self.exit = exit


class PlacementFailed(SwathError, TimeoutError):  # noqa: N818
    """There was no room for a worker, or it was not ready in time.

    Attributes:
        asked: what the worker asked for.
        available: what was free.
    """

    def __init__(self, message: str, *, asked: str = "", available: str = "") -> None:
        super().__init__(message)
        self.asked = asked
        self.available = available


class FleetFailed(SwathError):  # noqa: N818
    """Fewer workers are left than the run needs.

    Attributes:
        causes: why each of the others ended, in the order of their deaths.
    """

    def __init__(self, message: str, *, causes: tuple[BaseException, ...] = ()) -> None:
        super().__init__(message)
        self.causes = causes


class RemoteFailure(SwathError):  # noqa: N818
    """User code in a worker raised something that cannot be rebuilt here.

    Attributes:
        type_name: of what was raised.
        traceback: over there, as text.
    """

    def __init__(self, message: str, *, type_name: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.traceback = traceback


class Superseded(SwathError):  # noqa: N818
    """A rollout was given up, since another was asked for."""


class PayloadLost(SwathError):  # noqa: N818
    """A finished fragment was lost by its store; it is asked for again."""


class NonFinite(SwathError, ValueError):  # noqa: N818
    """A NaN or an infinity where `check_finite=True` asked for finite numbers."""


class NoEffectWarning(UserWarning):
    """A setting that does nothing here; given once per setting and process."""


class BadAnswer(SwathError, ValueError, TypeError):  # noqa: N818
    """An env returned something else than its API promises, or does not take what that hands in."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Give a warning that names the line that called the function with something to warn of."""
    warnings.warn(message, category, stacklevel=3)


def warn_of_no_effect(setting: str, why: str) -> None:
    """Give one `NoEffectWarning` per setting and process."""
    if setting not in _warned_of:
        _warned_of.add(setting)
        warn(f"{setting} has no effect here: {why}", NoEffectWarning)


_warned_of: set[str] = set()


@contextmanager
def noted(what: str) -> Iterator[None]:
    """Add to an exception by what it was raised."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by {what}")
        raise
