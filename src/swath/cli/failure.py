"""Early ends of a command: an error in one line, an error with a traceback, or Ctrl-C, which keeps all results."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from traceback import format_exception
from types import FrameType

from swath.errors import FleetFailed
from swath.workers.outcome import REMOTE_TRACEBACK

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""

EXTERNAL_ERRORS = (OSError, MemoryError, FloatingPointError, FleetFailed)
"""Errors that can end a run without a mistake in the code of env or policy."""

HEADER = "Traceback (most recent call last):\n"
FRAME = re.compile(r'^(?=  File ")', re.MULTILINE)
LIBRARY = re.compile(
    rf'  File "({re.escape(str(Path(__file__).parents[1]))}/|<frozen |.*/python3\.\d+/(?!(site|dist)-packages/)'
    r"|.*/(site|dist)-packages/(swath|gymnasium|pettingzoo|ray|tensordict|torch|torchrl)/)"
)
"""A frame of a traceback that is in a library."""

HINT = "Ctrl-C stops after this batch and keeps everything"
STOPPING = "stopping after this batch; Ctrl-C again ends at once"
KEPT_HANDLERS = (signal.SIG_IGN, None)
"""Handlers to keep: a shell has background jobs ignore Ctrl-C, `None` is a handler of code outside Python."""


class RunError(Exception):
    """A run that ended early; the message has the cause and the next step, above the traceback of user code."""

    code = FAILED


class UsageError(RunError):
    """A command with a wrong argument; the message is one line and says what to change."""

    code = USAGE

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


def command_line(*words: object) -> str:
    """Return a command line of this program, quoted for a shell."""
    return shlex.join(["swath", *map(str, words)])


def one_line(error: BaseException) -> str:
    """Return the message of an exception in one line; its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def with_traceback(line: str, error: BaseException) -> RunError:
    """Return the error of a run that user code ended, with its traceback."""
    return RunError(f"{type(error).__name__}: {one_line(error)}; {line}\n{user_traceback(error)}")


def user_traceback(error: BaseException, last: int = 0) -> str:
    """Return the traceback of this process or of a worker, without the frames of libraries above the user's first.

    Args:
        error: the exception.
        last: number of frames to keep where none is of the user; 0 keeps all.
    """
    notes = (note.partition(REMOTE_TRACEBACK)[2] for note in getattr(error, "__notes__", ()))
    trace = next(filter(None, notes), "") or "".join(format_exception(error))

    def drop_library_frames(part: str) -> str:
        before, *frames = FRAME.split(part)
        first = next((number for number, frame in enumerate(frames) if not LIBRARY.match(frame)), -last)
        return before + "".join(frames[first:])

    return HEADER.join(map(drop_library_frames, trace.split(HEADER))).rstrip()


@contextmanager
def usage_errors(begin: str = "", *kinds: type[Exception]) -> Iterator[None]:
    """Turn exceptions into a `UsageError`; an exception with notes comes from an env, and passes.

    Args:
        begin: first words of the message, for example the name of a file and a colon.
        kinds: types of exceptions; by default bad values, unknown envs, missing packages and errors of the system.
    """
    from gymnasium.error import Error as EnvError  # not needed by `swath --help`

    errors = kinds or (EnvError, ImportError, OSError, ValueError)
    try:
        yield
    except errors as error:
        if hasattr(error, "__notes__") and not isinstance(error, EnvError | ImportError):
            raise
        raise UsageError(f"{begin}{error}") from error


@contextmanager
def run_errors(env: str, resume_hint: Callable[[], str] = str) -> Iterator[None]:
    """Turn an exception into one line that says how to continue, above the traceback if user code raised it.

    A full disk, full memory, diverged numbers and lost workers have no traceback.

    Args:
        env: name of the env.
        resume_hint: returns how to continue the run; an empty text if no run has begun.
    """
    try:
        yield
    except RunError:
        raise
    except (Exception, SystemExit) as error:
        env_hint = f"`{command_line('doctor', env)}` checks the env"
        if isinstance(error, FloatingPointError):  # a resumed run would diverge again
            raise RunError(f"{one_line(error)}; {env_hint}; --ppo.learning-rate is for a new run") from error
        notes = [note.partition(REMOTE_TRACEBACK)[0].partition("\n")[0] for note in getattr(error, "__notes__", ())]
        if isinstance(error, EXTERNAL_ERRORS) and not notes:
            raise RunError("; ".join(filter(None, [one_line(error), resume_hint()]))) from error
        raise with_traceback("; ".join(filter(None, [*notes, resume_hint(), env_hint])), error) from error


@contextmanager
def optional_feature(say: Callable[[str], None], feature: str) -> Iterator[None]:
    """Skip a feature whose extra is missing or broken, and say so in one line."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  packages whose versions do not fit fail in their own ways
        say(f"no {feature}: {one_line(error)}")


class StopRequest(ExitStack):
    """Inside its `with` block, SIGINT and SIGTERM only set `requested`; a second signal calls the earlier handler.

    Main thread only. `requested` is the signal's number, or 0; `exit_code` is the exit code for that signal, or 0.

    Args:
        say: tells the user that the request has arrived.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self.requested, self.exit_code, self._say = 0, 0, say
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) not in KEPT_HANDLERS:
                self.callback(signal.signal, number, signal.signal(number, self._request))

    def _request(self, number: int, _frame: FrameType | None) -> None:
        self.requested, self.exit_code = number, 128 + number
        self.close()  # restores the earlier handlers
        with suppress(RuntimeError):  # the signal may have interrupted a write, which is not reentrant
            self._say(STOPPING)
