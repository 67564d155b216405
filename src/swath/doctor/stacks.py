"""Where the user's code was when it raised, or did not come back: in a traceback, or in stacks that were written."""

from __future__ import annotations

from traceback import extract_tb

from swath.frames import Frame, Place, place


def place_in(text: str) -> Place | None:
    """Where the thread was that went through Swath; `None` if the stacks do not say."""
    threads = ([*filter(None, map(Frame.written, thread.splitlines()))] for thread in text.split("\n\n"))
    return next(filter(None, map(place, threads)), None)


def users_line(error: BaseException) -> str | None:
    """The innermost line of the user's that an exception went through, as `file:line`; `None` if there is none."""
    frames = [Frame(one.filename, str(one.lineno), one.name) for one in extract_tb(error.__traceback__)]
    return next((frame.at for frame in reversed(frames) if frame.is_users()), None)
