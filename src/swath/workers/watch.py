"""How several threads wait for workers and look after them: one lock, short looks, waits without it.

look (locked: notice, decide, spawn, kill) ─▶ pause (unlocked: until an answer, news, or something is due) ─▶ look …
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import TypeAlias

from swath.errors import Closed
from swath.workers.base import Backend
from swath.workers.lives import Lives
from swath.workers.tickets import Ticket

Interrupted: TypeAlias = Callable[[], bool]


class Watch:
    """Looks after lives, from any thread.

    Args:
        backend: where they are lived.
        lives: what is looked after.
        clock: seconds, the same as of tickets.

    Attributes:
        over: whether nobody looks any more.
    """

    def __init__(self, backend: Backend, lives: Lives, clock: Callable[[], float]) -> None:
        self.over = False
        self._backend = backend
        self._lives = lives
        self._clock = clock
        self._lock = threading.RLock()

    def end(self) -> bool:
        """Nobody looks any more, and whoever waits gets `Closed`; false if it was so before."""
        with self.holding():
            first, self.over = not self.over, True
            self._lives.stirs += 1
        return first

    def require_open(self) -> None:
        """Raise `Closed` after the end."""
        if self.over:
            raise Closed("the workers were shut down; build another collector or evaluator")

    @contextmanager
    def holding(self) -> Iterator[Lives]:
        """The lives, alone; others are told if something has changed."""
        with self._lock:
            before = self._lives.stirs
            try:
                yield self._lives
            finally:
                if self._lives.stirs != before:
                    self._backend.wake()

    def look(self, tickets: Sequence[Ticket] = ()) -> int:
        """Take note of what has happened, and do what is due.

        Returns:
            For `pause`: up to where all is known.

        Raises:
            Closed: after the end.
        """
        with self.holding() as lives:
            self.require_open()
            lives.look(tickets)
            return lives.stirs

    def pause(
        self, tickets: Sequence[Ticket], known: int, until: float = inf, interrupted: Interrupted | None = None
    ) -> None:
        """Wait until it is time for another look."""

        def over() -> bool:
            return self._lives.stirs != known or (interrupted is not None and interrupted())

        due = min(until, self._lives.due_at)
        self._backend.wait([*tickets, *self._lives.watched], self.left(due), over)

    def reached(
        self,
        goal: Callable[[], bool],
        tickets: Sequence[Ticket] = (),
        until: float = inf,
        interrupted: Interrupted | None = None,
    ) -> bool:
        """Look and wait until the goal is reached; false if the time is over or it is interrupted before that.

        Args:
            goal: asked after each look; what it raises is raised.
            tickets: of calls; whatever is answered is a reason to look again.
            until: a reading of the clock.
            interrupted: true ends the wait.
        """
        while True:
            known = self.look(tickets)
            if goal():
                return True
            if self.passed(until) or (interrupted is not None and interrupted()):
                return False
            self.pause([ticket for ticket in tickets if not ticket.done], known, until, interrupted)

    def until(self, timeout: float | None) -> float:
        """When so many seconds will have passed; never for `None`."""
        return inf if timeout is None else self._clock() + timeout

    def left(self, until: float) -> float | None:
        """How many seconds are left, in the words of `Backend.wait`."""
        return None if until == inf else min(max(0.0, until - self._clock()), threading.TIMEOUT_MAX)

    def passed(self, until: float) -> bool:
        """Whether it is time."""
        return self._clock() >= until
