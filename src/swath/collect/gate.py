"""Who may touch the worker now: one thread draws at a time, control calls come between two fragments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from swath.errors import Closed, WorkerLate

CONTROL_DEADLINE_S = 600.0


class Gate:
    """Order among threads.

    A fragment is made inside `collecting()`, a control call runs inside `control()`: never both at once. What must not
    wait is left with `soon()` and done right after the running fragment. A second thread that draws is refused.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()
        self._drawing = threading.Lock()
        self._inside = threading.local()
        self._later: list[Callable[[], None]] = []
        self._later_lock = threading.Lock()
        self.halted = False
        self.closed = False

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Only one thread draws.

        Raises:
            RuntimeError: another thread is drawing.
        """
        if not self._drawing.acquire(blocking=False):
            raise RuntimeError(f"another thread is drawing from this {self._name}; one thread draws at a time")
        try:
            yield
        finally:
            self._drawing.release()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """A fragment is being made; what was left is done before, what is left meanwhile right after it."""
        with self._lock:
            self.require_open()
            self._do_later()
            self._inside.fragment = True
            try:
                yield
            finally:
                self._inside.fragment = False
                self._do_later()

    @contextmanager
    def control(self, deadline: float = CONTROL_DEADLINE_S) -> Iterator[None]:
        """Between two fragments.

        Raises:
            Closed: after shutdown.
            WorkerLate: the running fragment did not end in time.
            RuntimeError: called from a hook, that is from within the fragment it would have to wait for.
        """
        self.require_open()
        if getattr(self._inside, "fragment", False):
            raise RuntimeError(f"a control call of this {self._name} cannot run inside its own fragment; call it later")
        if not self._lock.acquire(timeout=deadline):
            raise WorkerLate(
                f"the fragment in progress did not end within {deadline} s; nothing was changed, call again later",
                workers=(0,),
                deadline=deadline,
            )
        try:
            self.require_open()
            yield
        finally:
            self._lock.release()

    def soon(self, action: Callable[[], None]) -> None:
        """Do it now if no fragment is being made, else right after it."""
        self.require_open()
        with self._later_lock:
            self._later.append(action)
        if not getattr(self._inside, "fragment", False) and self._lock.acquire(blocking=False):
            try:
                self._do_later()
            finally:
                self._lock.release()

    def require_open(self) -> None:
        """Raise `Closed` after shutdown."""
        if self.closed or self.halted:
            raise Closed(f"this {self._name} was shut down; build another one")

    def close(self, timeout: float, action: Callable[[], None]) -> None:
        """Stop the running fragment at its next step and close; `action` then runs, once.

        Raises:
            WorkerLate: the fragment did not stop within `timeout` seconds; an env or the policy does not return.
        """
        self.halted = True
        if not self._lock.acquire(timeout=timeout):
            raise WorkerLate(
                f"a step of the env or the policy has not returned within {timeout} s; its envs were not closed",
                workers=(0,),
                deadline=timeout,
            )
        try:
            if not self.closed:
                self.closed = True
                action()
        finally:
            self._lock.release()

    def _do_later(self) -> None:
        while True:
            with self._later_lock:
                if not self._later:
                    return
                action = self._later.pop(0)
            action()
