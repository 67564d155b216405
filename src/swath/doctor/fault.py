"""What the user's code raised, apart from what went wrong here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Fault(Exception):  # noqa: N818  what the env did, not what went wrong here
    """An env raised.

    Attributes:
        env: which one.
        call: which method.
        cause: what it raised.
    """

    def __init__(self, env: Any, call: str, cause: BaseException) -> None:
        super().__init__(call, cause)
        self.env = env
        self.call = call
        self.cause = cause


@contextmanager
def calling(env: Any, call: str) -> Iterator[None]:
    """Around a call of an env: what it raises becomes a `Fault`, also where it means to end the process."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise Fault(env, call, error) from error
