"""A worker's actor on Ray: settles in, then lets a `WorkerServer` host the object and answer.

This module imports nothing heavy: numpy and torch read how many threads they may have when they are imported.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from swath.workers.message import Reply
    from swath.workers.ray.messages import Setup, Wire
    from swath.workers.ray.server import Answer, WorkerServer


_T = TypeVar("_T")


class RayWorker:
    """An actor. Its constructor cannot fail, so that whatever fails is an answer.

    Ray calls it in one thread, which is not the main one, and each group of the others in one of its own.
    """

    _server: WorkerServer | None = None

    def __init__(self) -> None:
        self._settled = threading.Event()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def swath_here(self) -> None:
        """Answer, as soon as there is an actor."""

    def swath_build(self, setup: Setup) -> Answer:
        """Settle in, then build the object; a second time, say again what came of it."""
        try:
            if self._server is None:
                self._server = _or_die(_served, setup)
        finally:
            self._settled.set()
        return self._server.built

    def swath_ready(self) -> Answer:
        """What came of building the object, to others than those who had it built.

        Raises:
            RuntimeError: the worker could not settle in.
        """
        self._settled.wait()
        return self.swath_server().built

    def swath_answer(self, method: bytes, args: Wire) -> Answer:
        """Call a method of the object; its name comes as bytes, which Ray need not pickle."""
        return _or_die(self.swath_server().answer, method.decode(), args)

    def swath_whole(self, method: bytes, args: Wire) -> Reply | bytes:
        """Call a method of the object; the answer is one result, also where the body of a parcel is large."""
        return _or_die(self.swath_server().whole, method.decode(), args)

    def swath_aside(self, method: bytes, args: Wire) -> Answer:
        """Call a method of the object once there is one, also while it answers another call."""
        self._settled.wait()
        return self.swath_answer(method, args)

    def swath_live(self) -> None:
        """Never return: whoever waits for this learns of the actor's end."""
        threading.Event().wait()

    def swath_server(self) -> WorkerServer:
        """Where calls are answered.

        Raises:
            RuntimeError: the worker is not up yet, or could not settle in.
        """
        if self._server is None:
            raise RuntimeError("the worker is not up: wait until it is ready, or see why it is not")
        return self._server


def public(name: str) -> Callable[..., Any]:
    """A method for an actor's class that calls the object's method of this name."""

    def forward(self: RayWorker, *args: Any, **kwargs: Any) -> Any:
        return _or_die(partial(self.swath_server().method(name), *args, **kwargs))

    forward.__name__ = forward.__qualname__ = name
    return forward


def _or_die(answer: Callable[..., _T], *args: Any) -> _T:
    """Answer; what is no `Exception` is the end of the process, which Ray would let live or hang."""
    try:
        return answer(*args)
    except Exception:
        raise
    except BaseException as error:  # noqa: BLE001  there is nobody above to tell
        traceback.print_exc()
        code = error.code if isinstance(error, SystemExit) else 1
        os._exit(code if isinstance(code, int) else code is not None)


def _served(setup: Setup) -> WorkerServer:
    os.environ.update(setup.variables)
    sys.path.extend(entry for entry in setup.path if entry not in sys.path and Path(entry).exists())
    from swath.workers.first import ran  # noqa: PLC0415  it is found only now

    before = ran(setup.before)
    from swath.workers.ray.server import WorkerServer  # noqa: PLC0415  imports numpy and torch, which read the variables

    return WorkerServer(setup, before)
