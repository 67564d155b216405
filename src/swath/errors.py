"""Every exception and warning of the library, one meaning each.

All errors derive from `SwathError`, a `RuntimeError`. Errors of user code (an env, a policy, a hook) are not wrapped:
they reach the caller as their own type with a note that says where they happened.
"""

from __future__ import annotations

import warnings


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


class NonFinite(SwathError, ValueError):  # noqa: N818
    """A NaN or an infinity where `check_finite=True` asked for finite numbers."""


class NoEffectWarning(UserWarning):
    """A setting that does nothing here; given once per setting and process."""


def warn_of_no_effect(setting: str, why: str, *, stacklevel: int = 2) -> None:
    """Give one `NoEffectWarning` per setting and process."""
    if setting not in _warned_of:
        _warned_of.add(setting)
        warnings.warn(f"{setting} has no effect here: {why}", NoEffectWarning, stacklevel=stacklevel + 1)


_warned_of: set[str] = set()
