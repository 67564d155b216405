"""What user code raised, told by the user's own lines: what Python prints, without what lies between.

```
error ─┬─ its traceback ─────────────────┐
       └─ or its note of a remote one ───┴─▶ frames ─▶ those of the user, and what they called of libraries
```
"""

from __future__ import annotations

import re
from traceback import format_exception
from typing import TYPE_CHECKING

from swath.cli.pasting import command_line
from swath.errors import BadAnswer, RemoteFailure
from swath.frames import Frame, homes_of
from swath.workers.outcome import REMOTE, type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHAINED = re.compile(r"\n\n(?:The above exception was|During handling of the above) .*:\n\n")
_MARKS = re.compile(r"[ ~^]+")
"""What Python writes below a line of source."""


def is_mistake(error: BaseException, env: str = "") -> bool:
    """Whether a line of the user's raised it, called what did, or is that of an env that answers wrongly.

    Args:
        error: what was raised.
        env: as it is named: in an installed module, that is the user's code, too.
    """
    return isinstance(error, BadAnswer) or bool(_users(_traces(error)[-1][0], env))


def told(error: BaseException, env: str) -> str:
    """What was raised, by which of the user's lines, in which env, and why: in a few lines."""
    *causes, (frames, _) = _traces(error)
    lines = [_headline(error), *_shown(_users(frames, env))]
    for frames, message in reversed(causes):
        if users := _users(frames, env):
            lines += [f"from {message}", *_shown(users)]
    return "\n".join([*lines, *said_of(error)])


def look_alone(env: str) -> str:
    """What to do about an env that raises."""
    return f"`{command_line('doctor', env)}` looks at the env alone"


def _headline(error: BaseException) -> str:
    said, name = str(error), type_name(type(error))
    if isinstance(error, RemoteFailure | BadAnswer):  # their texts say of what type or class
        return said
    return f"{name}: {said}" if said else name


def said_of(error: BaseException) -> list[str]:
    """What was noted on the way of what an env or a policy raised: which of them, and when."""
    notes = (note.partition(REMOTE)[0].rstrip() for note in getattr(error, "__notes__", ()))
    return [note for note in notes if note]


def _traces(error: BaseException) -> list[tuple[list[Frame], str]]:
    """Frames and message of the causes, the first one first, and last of the error itself."""
    remote = [note.partition(REMOTE)[2] for note in getattr(error, "__notes__", ()) if REMOTE in note]
    text = remote[0] if remote else "".join(format_exception(error))
    return [_parsed(trace) for trace in _CHAINED.split(text)]


def _parsed(trace: str) -> tuple[list[Frame], str]:
    lines, frames = trace.splitlines()[1:], list[Frame]()
    for number, line in enumerate(lines):
        if not line.startswith("  "):
            return frames, "\n".join(lines[number:]).rstrip()
        if frame := Frame.written(line):
            frames.append(frame)
        elif frames and not _MARKS.fullmatch(line):
            frames[-1].source.append(line)
    return frames, ""


def _users(frames: Sequence[Frame], env: str) -> list[Frame]:
    """The user's frames, and those of libraries below the last of them."""
    homes = homes_of(env)
    own = [number for number, frame in enumerate(frames) if frame.is_users(homes)]
    below = frames[own[-1] + 1 :] if own else ()
    return [*(frames[number] for number in own), *(frame for frame in below if not frame.is_ours)]


def _shown(frames: Sequence[Frame]) -> list[str]:
    return ["\n".join([f"  {frame.at}, in {frame.function}", *frame.source]) for frame in frames]
