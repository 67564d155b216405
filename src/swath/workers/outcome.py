"""The outcome of a call: a value, or an exception that crosses the border with its traceback.

worker                                              caller
user code raises ─▶ serialize_error: bytes ─▶ deserialize_error: the same type, with a note
                                               └─▶ RemoteFailure if it cannot be rebuilt
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any, TypeAlias

import cloudpickle

from swath.errors import RemoteFailure


@dataclass(frozen=True)
class Value:
    """The call returned.

    Attributes:
        value: the returned value; a `Received` where the worker sent a `Parcel`.
    """

    value: Any


@dataclass(frozen=True)
class Error:
    """The call raised, or its worker died. A method may also return one, to say more than an exception does.

    Attributes:
        exception: the exception, of its original type, or `WorkerLost`; its traceback travels in a note.
        replace_worker: whether the worker cannot go on and must be replaced.
        counts: what the worker has counted so far, if it counts.
    """

    exception: BaseException
    replace_worker: bool = False
    counts: Any = None

    def __reduce__(self) -> Any:
        """Serialize the exception with its traceback."""
        return _rebuild_failure, (serialize_error(self.exception), self.replace_worker, self.counts)


def _rebuild_failure(error: bytes, replace_worker: bool, counts: Any) -> Error:
    return Error(deserialize_error(error), replace_worker, counts)


Outcome: TypeAlias = Value | Error

REMOTE_TRACEBACK = "remote traceback:\n"
"""Precedes the worker's traceback in a note of an exception."""


def serialize_error(error: BaseException) -> bytes:
    """Return the exception as bytes, with its traceback at the end of its last note: tracebacks cannot be pickled."""
    notes = getattr(error, "__notes__", None)
    last_note = f"{notes.pop()}\n" if notes else ""
    text = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"{last_note}{REMOTE_TRACEBACK}{text}")
    description = (type_name(type(error)), str(error), list(error.__notes__), text)
    try:
        pickled = cloudpickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301  pickled in the line above
    except Exception:  # noqa: BLE001  users' exceptions may raise anything when they are copied
        pickled = b""
    data: bytes = cloudpickle.dumps((pickled, description))
    return data


def deserialize_error(data: bytes) -> BaseException:
    """Rebuild the exception, or return a `RemoteFailure` that describes it."""
    pickled, (name, message, notes, text) = pickle.loads(data)  # noqa: S301  our own workers wrote it
    if pickled:
        try:
            error: BaseException = pickle.loads(pickled)  # noqa: S301  our own workers wrote it
        except Exception as failed:  # noqa: BLE001  its class may be missing in this process
            message = f"{message} (not rebuilt here: {failed!r})"
        else:
            return error
    failure = RemoteFailure(f"{name}: {message}", type_name=name, traceback=text)
    for note in notes:
        failure.add_note(note)
    return failure


def type_name(kind: type) -> str:
    """Return the name under which Python prints a type of exceptions."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
