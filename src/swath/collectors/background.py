"""Collection in a background thread, into a replay buffer.

start ─▶ running ─▶ (pause ⇄ resume) ─▶ total reached, stopped, error, or shutdown
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from swath.collectors.fragments import nothing
from swath.collectors.service import CollectorService
from swath.errors import Closed, WorkerLate


class Background:
    """Draws in a daemon thread until the run ends. Start, pause and stop may be called from any thread.

    An error stops it, is kept, and is raised once by `raise_kept`.

    Args:
        collection: what is drawn from.
        enter: called before the thread starts, between two fragments.
        leave: called when the thread ends, between two fragments.
    """

    def __init__(
        self, collection: CollectorService, enter: Callable[[], None] = nothing, leave: Callable[[], None] = nothing
    ) -> None:
        self._collection = collection
        self._enter, self._leave = enter, leave
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._running = self._stopped = False
        self._pauses = 0
        self._idle = True
        self._error: BaseException | None = None

    @property
    def running(self) -> bool:
        """Whether the thread is there, collecting or paused."""
        return self._running

    @property
    def error(self) -> BaseException | None:
        """What stopped it, until it was raised."""
        return self._error

    def raise_kept(self) -> None:
        """Raise what stopped the thread, once."""
        with self._change:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def start(self) -> None:
        """Begin, or do nothing if it is running."""
        with self._collection.gate.control():
            if self._running:
                return
            self._enter()
            self._stopped = self._idle = False
            self._running, self._pauses = True, 0
            self._thread = threading.Thread(target=self._run, name="swath-collect", daemon=True)
            self._thread.start()

    def pause(self, timeout: float) -> None:
        """Let what is in flight be written, then stand still until every pause has ended.

        Nothing happens if it is not running.

        Raises:
            RuntimeError: called by the thread itself, from a hook.
            WorkerLate: it took longer than `timeout` seconds; collection goes on.
            Exception: what stopped the thread meanwhile.
        """
        if self._running and threading.current_thread() is self._thread:
            raise RuntimeError("the background thread cannot wait for itself; pause it from another thread")
        with self._change:
            self._pauses += 1
            if self._running:
                self._collection.hold()
            try:
                self._stand_still(timeout)
            except BaseException:
                self.resume()
                raise
        self.raise_kept()

    def resume(self) -> None:
        """Go on, unless another pause lasts."""
        with self._change:
            self._pauses = max(self._pauses - 1, 0)
            if not self._pauses:
                self._collection.release()
            self._change.notify_all()

    def stop(self, timeout: float) -> None:
        """End the thread after what is in flight, without an end of the run."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    @contextmanager
    def ending(self, timeout: float) -> Iterator[None]:
        """End the thread behind what is done within, as `stop`; Ctrl-C meanwhile does not wait for the thread, too."""
        left = timeout
        try:
            yield
        except KeyboardInterrupt:
            left = 0.0
            raise
        finally:
            self.stop(left)

    def _stand_still(self, timeout: float) -> None:
        if not self._change.wait_for(lambda: self._idle or not self._running, timeout):
            raise WorkerLate(
                f"the batch in progress was not written within {timeout} s; collection goes on, pause again later",
                workers=(0,),
                deadline=timeout,
            )

    def _run(self) -> None:
        error = self._draw_on()
        with suppress(Closed), self._collection.gate.control():
            self._leave()
        with self._change:
            self._running, self._idle, self._error = False, True, error
            self._collection.release()
            self._change.notify_all()

    def _draw_on(self) -> BaseException | None:
        """Draw until the end; what it ended with, if that is an error."""
        try:
            while self._may_go_on():
                drawn = self._collection.draw()
                if drawn.ended and self._collection.completed:
                    break
        except Closed:
            return None
        except BaseException as error:  # noqa: BLE001  kept, shown in stats, raised by the next call
            return error
        return None

    def _may_go_on(self) -> bool:
        """Whether to draw again; when it is paused, as long as there is something in flight."""
        with self._change:
            while self._pauses and not self._over() and not self._collection.in_flight:
                self._idle = True
                self._change.notify_all()
                self._change.wait_for(lambda: not self._pauses or self._over())
                self._idle = False
            return not self._over()

    def _over(self) -> bool:
        return self._stopped or self._collection.gate.halted
