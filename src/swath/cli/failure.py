"""How a command ends before its time: in one line, in one above a traceback, or by Ctrl-C, which keeps everything."""

from __future__ import annotations

import shlex
import signal
from contextlib import AbstractContextManager, contextmanager, suppress
from traceback import format_exception
from typing import TYPE_CHECKING

from swath.errors import FleetFailed
from swath.workers.outcome import REMOTE_TRACEBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""

FROM_OUTSIDE = (OSError, MemoryError, FloatingPointError, FleetFailed)
"""What may end a run without a mistake in anybody's code."""

HINT = "Ctrl-C stops after this batch and keeps everything"
ANSWER = "stopping after this batch; Ctrl-C again ends at once"
UNTOUCHED = (signal.SIG_IGN, None)
"""Handlers that stay: a shell has background jobs ignore Ctrl-C, `None` belongs to someone outside Python."""


class BrokenOffError(Exception):
    """A run that cannot go on; its text says why and how to go on, above the traceback if code raised."""

    code = FAILED


class UsageError(BrokenOffError):
    """A command that cannot be carried out; its text is one line that says what to change."""

    code = USAGE

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


def command_line(*words: object) -> str:
    """These words after this program's name, quoted as a shell wants it."""
    return shlex.join(["swath", *map(str, words)])


def one_line(error: BaseException) -> str:
    """What an exception says; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def with_traceback(line: str, error: BaseException) -> BrokenOffError:
    """The end of a run that code has raised, in this process or in that of a worker."""
    remote = [
        note.partition(REMOTE_TRACEBACK)[2] for note in getattr(error, "__notes__", ()) if REMOTE_TRACEBACK in note
    ]
    trace = remote[0] if remote else "".join(format_exception(error))
    return BrokenOffError(f"{type(error).__name__}: {one_line(error)}; {line}\n{trace.rstrip()}")


@contextmanager
def refusing(begin: str = "", *kinds: type[Exception]) -> Iterator[None]:
    """Turn such exceptions into a `UsageError` that begins with these words; what an env raised has notes, and passes.

    Args:
        begin: such as the name of a file and a colon.
        kinds: of exceptions; by default bad values, unknown envs, missing packages and what the system refuses.
    """
    from gymnasium.error import Error as EnvError  # not needed by `swath --help`

    refused = kinds or (EnvError, ImportError, OSError, ValueError)
    try:
        yield
    except refused as error:
        if hasattr(error, "__notes__") and not isinstance(error, EnvError | ImportError):
            raise
        raise UsageError(f"{begin}{error}") from error


@contextmanager
def broken_off(env: str, way_on: Callable[[], str] = str) -> Iterator[None]:
    """Turn what ends a run into one line that says how to go on; below it the traceback, if code raised.

    A full disk, full memory, diverged numbers and workers that are gone are the line alone.

    Args:
        env: as it is named.
        way_on: says how to go on; nothing where nothing has begun.
    """
    try:
        yield
    except BrokenOffError:
        raise
    except (Exception, SystemExit) as error:
        alone = f"`{command_line('doctor', env)}` looks at the env alone"
        if isinstance(error, FloatingPointError):  # a resumed run would diverge again
            raise BrokenOffError(f"{one_line(error)}; {alone}; --ppo.learning-rate is for a new run") from error
        notes = [note.partition(REMOTE_TRACEBACK)[0].partition("\n")[0] for note in getattr(error, "__notes__", ())]
        if isinstance(error, FROM_OUTSIDE) and not notes:
            raise BrokenOffError("; ".join(filter(None, [one_line(error), way_on()]))) from error
        raise with_traceback("; ".join(filter(None, [*notes, way_on(), alone])), error) from error


@contextmanager
def optional(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Go on without what an extra brings, after one line: it may be missing, or installed and broken."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  packages whose versions do not fit fail in their own ways
        say(f"no {what}: {one_line(error)}")


class StopRequest(AbstractContextManager["StopRequest"]):
    """Inside its `with` block, SIGINT and SIGTERM only set `requested`; a second one acts as it would have before.

    Main thread only. `requested` is the signal's number, or 0; `exit_code` that of a process ended by it, or 0.

    Args:
        say: shows the user that the request has arrived.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested, self.exit_code, self._say = 0, 0, say
        asked = (signal.SIGINT, signal.SIGTERM)
        touched = [number for number in asked if signal.getsignal(number) not in UNTOUCHED]
        self._before = {number: signal.signal(number, self._ask) for number in touched}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.requested, self.exit_code = number, 128 + number
        self.__exit__()
        with suppress(RuntimeError):  # the signal may have come in the middle of a write, which cannot be entered twice
            self._say(ANSWER)
