"""Collection in a background thread, into a replay buffer.

start ─▶ running ─▶ (pause ⇄ resume) ─▶ total reached, stopped, error, or shutdown
"""

from __future__ import annotations

import threading
from contextlib import suppress

from swath.collectors.delivery import ENDED
from swath.collectors.service import CollectorService
from swath.errors import Closed, WorkerLate


class Background:
    """Draws in a daemon thread until the run ends. Start, pause and stop may be called from any thread.

    An error stops it, is kept, and is raised once by `raise_error`.

    Args:
        collection: the collection to draw from; a worker in this process acts with a copy of the policy meanwhile.

    Attributes:
        running: whether the thread runs, collecting or paused.
        error: the exception that stopped it, until it is raised.
    """

    def __init__(self, collection: CollectorService) -> None:
        self.running = False
        self.error: BaseException | None = None
        self._collection, self._group = collection, collection.group
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = self._drawing = False

    def raise_error(self) -> None:
        """Raise the exception that stopped the thread, once."""
        with self._change:
            error, self.error = self.error, None
        if error is not None:
            raise error

    def start(self) -> None:
        """Start the thread; do nothing if it is running."""
        with self._collection.access.control():
            if self.running:
                return
            self._set_actor(background=True)
            self.running, self._stopped = True, False
            self._thread = threading.Thread(target=self._run, name="swath-collect", daemon=True)
            self._thread.start()

    def pause(self, timeout: float) -> None:
        """Write all pending fragments, then request no more until every pause has ended.

        Nothing happens if it is not running.

        Raises:
            WorkerLate: it took longer than `timeout` seconds; collection goes on.
            Exception: what stopped the thread meanwhile.
        """
        with self._change:
            if self.running:
                self._group.pause()
            idle = False  # after Ctrl-C, too
            try:
                idle = self._change.wait_for(lambda: not (self.running and self._has_work()), timeout)
            finally:
                if not idle:
                    self.resume()
        if not idle:
            message = f"the batch in progress was not written within {timeout} s; collection goes on, pause again later"
            raise WorkerLate(message, workers=(0,), deadline=timeout)
        self.raise_error()

    def resume(self) -> None:
        """End one pause."""
        with self._change:
            self._group.resume()
            self._group.fleet.wake()
            self._change.notify_all()

    def stop(self, timeout: float) -> None:
        """End the thread after the draw in progress; a fork has no thread to end."""
        if not self._collection.owner.is_here:
            return
        with self._change:
            self._stopped = True
            self._change.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _set_actor(self, *, background: bool) -> None:
        """Set the acting policy of a worker in this process: a copy of the policy, or the policy itself."""
        if self._collection.member is not None:
            self._group.call("act_in_background", background)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._wait_for_next_draw():
                if self._collection.draw() is ENDED and self._collection.completed:
                    break
        except Closed:
            pass
        except BaseException as raised:  # noqa: BLE001  kept, shown in stats, raised by the next call
            error = raised
        with suppress(Closed), self._collection.access.control():
            self._set_actor(background=False)
        with self._change:
            self.running, self.error = False, error
            self._group.resume(all_pauses=True)
            self._change.notify_all()

    def _wait_for_next_draw(self) -> bool:
        """Wait during a pause, unless requests are pending, and return whether to draw again."""
        with self._change:
            self._drawing = False
            self._change.notify_all()
            self._change.wait_for(lambda: self._is_over() or not self._group.pause_count or self._has_work())
            self._drawing = not self._is_over()
            return self._drawing

    def _has_work(self) -> bool:
        """Return whether the thread draws, or requests are open."""
        with self._group.lock:
            return self._drawing or bool(self._group.open_requests())

    def _is_over(self) -> bool:
        return self._stopped or self._collection.access.halted
