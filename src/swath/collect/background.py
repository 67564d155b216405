"""Collection in a background thread, into a replay buffer.

start ─▶ running ─▶ (pause ⇄ resume) ─▶ total reached, error, or shutdown
"""

from __future__ import annotations

import threading

from swath.collect.collection import Collection
from swath.errors import Closed, WorkerLate


class Background:
    """Draws in a daemon thread until the run ends. Start, pause and stop may be called from any thread.

    An error stops it, is kept, and is raised once by `raise_kept`.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._paused = False
        self._idle = True
        self._error: Exception | None = None

    @property
    def running(self) -> bool:
        """Whether the thread is there, collecting or paused."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def error(self) -> Exception | None:
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
        with self._change:
            if self.running:
                return
            self._paused, self._idle = False, False
            self._thread = threading.Thread(target=self._run, name="swath-collect", daemon=True)
            self._thread.start()

    def pause(self, timeout: float) -> None:
        """Let what is in flight be written, then stand still.

        Raises:
            WorkerLate: it took longer than `timeout` seconds; collection goes on.
        """
        with self._change:
            self._paused = True
            if not self._change.wait_for(lambda: self._idle or not self.running, timeout):
                self._paused = False
                raise WorkerLate(
                    f"the batch in progress was not written within {timeout} s; collection goes on, pause again later",
                    workers=(0,),
                    deadline=timeout,
                )

    def resume(self) -> None:
        """Go on."""
        with self._change:
            self._paused = False
            self._change.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the thread after the collection was closed."""
        self.resume()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        try:
            while self._may_go_on() and not self._collection.draw().ended:
                pass
        except Closed:
            return
        except Exception as error:  # noqa: BLE001  kept, shown in stats, raised by the next call
            self._error = error
        finally:
            with self._change:
                self._idle = True
                self._change.notify_all()

    def _may_go_on(self) -> bool:
        with self._change:
            self._idle = True
            self._change.notify_all()
            self._change.wait_for(lambda: not self._paused or self._collection.gate.halted)
            self._idle = False
            return not self._collection.gate.halted
