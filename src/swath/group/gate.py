"""Who may touch the worker now: one thread draws at a time, control calls come between two fragments."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from swath.errors import Closed, WorkerLate

CONTROL_DEADLINE_S = 600.0


class Gate:
    """Order among threads.

    A fragment is made inside `collecting()`, a control call runs inside `control()`: never both at once, and a control
    call that waits comes before the next fragment. What must not wait is left with `soon()` and done right after the
    running fragment. A second thread that draws is refused.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.halted = self.closed = False
        self._turnstile = threading.Lock()  # whoever waits for the lock holds it, so that nobody overtakes
        self._lock, self._drawing = threading.RLock(), threading.Lock()
        self._inside = threading.local()
        self._later: deque[Callable[[], None]] = deque()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Only one thread draws.

        Raises:
            RuntimeError: another draw is going on.
        """
        if not self._drawing.acquire(blocking=False):
            raise RuntimeError(f"this {self.name} is being drawn from already; one thread draws at a time")
        try:
            yield
        finally:
            self._drawing.release()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """A fragment is being made; what was left is done before, what is left meanwhile right after it."""
        with self._turn(CONTROL_DEADLINE_S, "the control call in progress did not end; draw again later"):
            self._inside.fragment = True
            try:
                yield
            finally:
                self._inside.fragment = False
                self._do_later()

    @contextmanager
    def control(self, deadline: float | None = None) -> Iterator[None]:
        """Between two fragments.

        Raises:
            Closed: after shutdown.
            WorkerLate: the running fragment did not end in time.
            RuntimeError: called by what runs within the fragment that it would have to wait for.
        """
        self.require_between()
        patience = CONTROL_DEADLINE_S if deadline is None else deadline
        with self._turn(patience, "the fragment in progress did not end; nothing was changed, call again later"):
            yield

    def soon(self, action: Callable[[], None]) -> None:
        """Do it now if no fragment is being made, else right after it."""
        self.require_open()
        self._leave(action)

    def require_between(self) -> None:
        """Raise `Closed` after shutdown, `RuntimeError` for who is called within the fragment."""
        self.require_open()
        if getattr(self._inside, "fragment", False):
            raise RuntimeError(f"a control call of this {self.name} cannot run inside its own fragment; call it later")

    def require_open(self) -> None:
        """Raise `Closed` after shutdown."""
        if self.halted:
            raise Closed(f"this {self.name} was shut down; build another one")

    def close(self, timeout: float, action: Callable[[], None]) -> None:
        """Stop the running fragment at its next step and close; `action` then runs, once.

        Raises:
            WorkerLate: the fragment did not stop within `timeout` seconds; its own thread closes when it does.
        """

        def close() -> None:
            if not self.closed:
                self.closed = True
                action()

        self.halted = True
        if self._lock.acquire(timeout=timeout):
            try:
                close()
            finally:
                self._lock.release()
        else:
            self._leave(close)
        if not self.closed:
            why = f"a step of the env or the policy has not returned within {timeout} s"
            raise WorkerLate(f"{why}; envs are closed as soon as it does", workers=(0,), deadline=timeout)

    @contextmanager
    def _turn(self, deadline: float, late: str) -> Iterator[None]:
        acquired = self._turnstile.acquire(timeout=deadline)
        if acquired:
            try:
                acquired = self._lock.acquire(timeout=deadline)
            finally:
                self._turnstile.release()
        if not acquired:
            raise WorkerLate(f"after {deadline} s: {late}", workers=(0,), deadline=deadline)
        try:
            self.require_open()
            self._do_later()
            yield
        finally:
            self._lock.release()
            self._do_left()  # who left it may have found the lock taken a moment ago

    def _leave(self, action: Callable[[], None]) -> None:
        self._later.append(action)
        if not getattr(self._inside, "fragment", False):
            self._do_left()

    def _do_left(self) -> None:
        """Do what was left, unless somebody has the lock, who does it afterwards."""
        while self._later and self._lock.acquire(blocking=False):
            try:
                self._do_later()
            finally:
                self._lock.release()

    def _do_later(self) -> None:
        while self._later:
            self._later.popleft()()
