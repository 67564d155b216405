"""What the user can put right, as one line instead of a traceback."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from swath.cli.mistake import is_mistake, look_alone, said_of, told
from swath.errors import FleetFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OK, FAILED, USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
"""Exit codes."""

FROM_OUTSIDE = (OSError, MemoryError, FloatingPointError, FleetFailed)
"""What may end a run without a mistake of anybody's."""

EXTRAS = {
    "Namespace ALE": "atari",
    "ale_py": "atari",
    "mujoco": "mujoco",
    "'imageio'": "mujoco",
    "pygame": "classic-control",
    "envpool": "envpool",
}
"""Words in the messages of others, and the extra that brings what they miss."""


class UsageError(Exception):
    """A command that cannot be carried out; its text is one line that says what to change."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class BrokenOffError(Exception):
    """A run that cannot go on; its text says why, and how to go on from what was saved.

    It is one line, or several where user code raised.
    """


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turn what goes wrong while a run is prepared into a `UsageError`: bad values, unknown envs, missing packages.

    What a line of the user's raised, but for missing packages, stays what it is: `told_if_broken_off` tells it.
    """
    from gymnasium.error import Error as EnvError  # noqa: PLC0415  not needed by `swath --help`

    try:
        yield
    except (EnvError, ImportError) as error:
        raise UsageError(with_extra(str(error))) from error
    except (OSError, ValueError) as error:
        if is_mistake(error):
            raise
        raise UsageError(str(error)) from error


@contextmanager
def told_if_unserved(env: str) -> Iterator[None]:
    """Turn the refusal of an env's spaces into a `UsageError`; only around what looks at spaces and nothing else."""
    try:
        yield
    except TypeError as unserved:
        if is_mistake(unserved):
            raise
        raise UsageError(f"{env}: {unserved}") from unserved


@contextmanager
def told_if_misfitting(file: Path, env: str = "") -> Iterator[None]:
    """Turn what goes wrong while a checkpoint is put to use into a `UsageError`.

    What the env raised meanwhile stays what it is: `told_if_broken_off` tells it.

    Args:
        file: the checkpoint.
        env: what it is put to use for, as it is named; nothing where it is only read.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if is_mistake(error, env) or said_of(error):
            raise
        what = f"{env} as it is here" if env else "this version of Swath"
        raise UsageError(f"{file} does not fit {what}: {error}") from error


@contextmanager
def told_if_broken_off(env: str, way_on: Callable[[], str] = str, move: str = "") -> Iterator[None]:
    """Turn what ends a run into a few words with the way to go on.

    A full disk, full memory, diverged numbers and workers that are gone are one line; what the user's code raised, also
    to end the process, is told by the user's lines. Bugs of others keep their traceback.

    Args:
        env: as it is named.
        way_on: says how to go on; nothing, where nothing has begun.
        move: what to do about an env that raises; by default, to have it looked at alone.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        noted = hasattr(error, "__notes__")  # what comes from an env or a policy says so in a note
        if isinstance(error, FROM_OUTSIDE) and not noted:
            text = "; ".join(filter(None, [str(error) or type(error).__name__, way_on()]))
            raise BrokenOffError(" ".join(text.split())) from error
        advice = "\n".join(filter(None, [move or look_alone(env), way_on()]))
        if is_mistake(error, env):
            raise BrokenOffError(f"{told(error, env)}\n{advice}") from error
        if noted:
            error.add_note(advice)
        raise


@contextmanager
def told_if_missing(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Go on without what an extra brings, after one line: it may be missing, or installed and broken."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  packages whose versions do not fit fail in their own ways
        say(f"no {what}: {' '.join(str(error).split()) or type(error).__name__}")


def with_extra(text: str) -> str:
    """A message about something that is missing, with the command that installs it where there is an extra for it."""
    hints = [f'; pip install "swath[{extra}]" brings it' for word, extra in EXTRAS.items() if word in text]
    return text.rstrip(".") + (hints[0] if hints and "swath[" not in text else "")
