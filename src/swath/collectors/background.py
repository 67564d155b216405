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

    An error stops it, is kept, and is raised once by `raise_kept`.

    Args:
        collection: what is drawn from; a worker in this process acts on a copy of the policy meanwhile.

    Attributes:
        running: whether the thread is there, collecting or paused.
        error: what stopped it, until it was raised.
    """

    def __init__(self, collection: CollectorService) -> None:
        self.running = False
        self.error: BaseException | None = None
        self._collection, self._group = collection, collection.group
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = self._drawing = False

    def raise_kept(self) -> None:
        """Raise what stopped the thread, once."""
        with self._change:
            error, self.error = self.error, None
        if error is not None:
            raise error

    def start(self) -> None:
        """Begin, or do nothing if it is running."""
        with self._collection.access.control():
            if self.running:
                return
            self._act_in(background=True)
            self.running, self._stopped = True, False
            self._thread = threading.Thread(target=self._run, name="swath-collect", daemon=True)
            self._thread.start()

    def pause(self, timeout: float) -> None:
        """Let what is in flight be written, then stand still until every pause has ended.

        Nothing happens if it is not running.

        Raises:
            WorkerLate: it took longer than `timeout` seconds; collection goes on.
            Exception: what stopped the thread meanwhile.
        """
        with self._change:
            self._group.held += self.running
            still = False  # after Ctrl-C, too
            try:
                still = self._change.wait_for(lambda: not (self.running and self._has_work()), timeout)
            finally:
                if not still:
                    self.resume()
        if not still:
            why = f"the batch in progress was not written within {timeout} s; collection goes on, pause again later"
            raise WorkerLate(why, workers=(0,), deadline=timeout)
        self.raise_kept()

    def resume(self) -> None:
        """Go on, unless another pause lasts."""
        with self._change:
            self._group.held = max(self._group.held - 1, 0)
            self._group.fleet.wake()
            self._change.notify_all()

    def stop(self, timeout: float) -> None:
        """End the thread after what is in flight, without an end of the run; a fork has no thread to end."""
        if not self._collection.owner.is_here:
            return
        with self._change:
            self._stopped = True
            self._change.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _act_in(self, *, background: bool) -> None:
        """In this process the policy itself acts only while the user draws."""
        if self._collection.member is not None:
            self._group.call("act_in_background", background)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._may_go_on():
                if self._collection.draw() is ENDED and self._collection.completed:
                    break
        except Closed:
            pass
        except BaseException as raised:  # noqa: BLE001  kept, shown in stats, raised by the next call
            error = raised
        with suppress(Closed), self._collection.access.control():
            self._act_in(background=False)
        with self._change:
            self.running, self.error, self._group.held = False, error, 0
            self._change.notify_all()

    def _may_go_on(self) -> bool:
        """Whether to draw again; when it is paused, as long as there is something in flight."""
        with self._change:
            self._drawing = False
            self._change.notify_all()
            self._change.wait_for(lambda: self._over() or not self._group.held or self._has_work())
            self._drawing = not self._over()
            return self._drawing

    def _has_work(self) -> bool:
        """Whether it draws, or there is something that was asked for and is not delivered."""
        with self._group.lock:
            return self._drawing or bool(self._group.wanted())

    def _over(self) -> bool:
        return self._stopped or self._collection.access.halted
