"""What became of a call: a value, or an exception that crossed the border with its traceback.

worker                                      caller
user code raises ─▶ frozen(error): bytes ─▶ thawed(bytes): the same type, with a note
                                             └─▶ RemoteFailure where it cannot be rebuilt
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
        value: what it returned; a `Received` where the worker sent a `Parcel`.
    """

    value: Any


@dataclass(frozen=True)
class Error:
    """The call raised, or its worker died.

    Attributes:
        exception: of its own type, or `WorkerLost`.
    """

    exception: BaseException


Outcome: TypeAlias = Value | Error

REMOTE = "remote traceback:\n"
"""Begins, in a note, the traceback of where an exception came from."""


def frozen(error: BaseException, *, one_note: bool = False) -> bytes:
    """The exception as bytes; its traceback becomes a note, since tracebacks cannot travel.

    Args:
        error: what was raised.
        one_note: make the traceback part of the last note that is there already.
    """
    notes = getattr(error, "__notes__", None)
    last = f"{notes.pop()}\n" if one_note and notes else ""
    text = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"{last}{REMOTE}{text}")
    described = (type_name(type(error)), str(error), list(error.__notes__), text)
    try:
        rebuilt = cloudpickle.dumps(error)
        pickle.loads(rebuilt)  # noqa: S301  we wrote it
    except Exception:  # noqa: BLE001  whatever users' exceptions do when they are copied
        rebuilt = b""
    data: bytes = cloudpickle.dumps((rebuilt, described))
    return data


def thawed(data: bytes) -> BaseException:
    """The exception that `frozen` made bytes of, or a `RemoteFailure` that says what it was."""
    rebuilt, (name, message, notes, text) = pickle.loads(data)  # noqa: S301  our own workers wrote it
    if rebuilt:
        try:
            error: BaseException = pickle.loads(rebuilt)  # noqa: S301  our own workers wrote it
        except Exception as failed:  # noqa: BLE001  the classes may exist over there only
            message = f"{message} (not rebuilt here: {failed!r})"
        else:
            return error
    failure = RemoteFailure(f"{name}: {message}", type_name=name, traceback=text)
    for note in notes:
        failure.add_note(note)
    return failure


def type_name(kind: type) -> str:
    """What Python calls a type of exceptions."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
