"""A worker's actor on Ray: settles in, then lets an `ActorServer` host the object and answer.

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
from typing import Any, NamedTuple, TypeAlias, TypeVar

from swath.owner import Owner
from swath.workers.hosting import ran
from swath.workers.tickets import Name

_T = TypeVar("_T")
_KILL_S = 30.0


class Large(NamedTuple):
    """A large value on its way through Ray; see `values`.

    Attributes:
        head: its structure.
        buffers: the memory of its arrays.
        beside: references that are in it.
    """

    head: bytes
    buffers: list[Any]
    beside: list[Any]


Wire: TypeAlias = bytes | Large

Answer: TypeAlias = tuple[Any, Large | bytes]
"""A reply, and the body of a parcel if it is large, which stays in Ray's store; else nothing."""


class Setup(NamedTuple):
    """Be this worker: these surroundings, then `before`, then `build`.

    Attributes:
        name: which life of which worker.
        path: where the driver finds modules.
        variables: of the environment, set before anything is imported.
        threads: torch's.
        before: as `travelling`.
        build: how to make the object.
    """

    name: Name
    path: list[str]
    variables: dict[str, str]
    threads: int
    before: bytes
    build: Wire


class RayWorker:
    """An actor. Its constructor cannot fail, so that whatever fails is an answer.

    Ray runs an actor that has no concurrency groups in the main thread of its process, one call after another.

    Args:
        setup: carried out by the first call that needs it.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._server: Any = None
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def swath_here(self) -> None:
        """Answer, as soon as there is an actor."""

    def swath_build(self) -> Answer:
        """What came of building the object."""
        built: Answer = self.swath_server().built
        return built

    def swath_answer(self, method: bytes, args: Wire) -> Answer:
        """Call a method of the object; its name comes as bytes, which Ray need not pickle."""
        answer: Answer = _or_die(self.swath_server().answer, method.decode(), args)
        return answer

    def swath_end(self) -> None:
        """Wait to be killed, then end: the call fails with the actor, which is how its end is noticed."""
        threading.Event().wait(_KILL_S)
        os._exit(1)

    def swath_server(self) -> Any:
        """Where calls are answered."""
        if self._server is None:
            self._server = _or_die(_served, self._setup)
            del self._setup  # it may hold a whole policy in Ray's store
        return self._server


def public(name: str) -> Callable[..., Any]:
    """A method for an actor's class that calls the object's method of this name."""

    def forward(self: RayWorker, *args: Any, **kwargs: Any) -> Any:
        return _or_die(partial(self.swath_server().method(name), *args, **kwargs))

    forward.__name__ = forward.__qualname__ = name
    return forward


def _or_die(answer: Callable[..., _T], *args: Any) -> _T:
    """Answer; what is no `Exception` is the end of the process, which Ray would let live or hang.

    A fork of the process ends here, too: the answer is its parent's to give.
    """
    owner = Owner()
    try:
        return answer(*args)
    except Exception:
        raise
    except BaseException as error:  # noqa: BLE001  Ray would go on
        traceback.print_exc()
        code = error.code if isinstance(error, SystemExit) else 1
        os._exit(code if isinstance(code, int) else code is not None)
    finally:
        if not owner.is_here:
            os._exit(0)


def _served(setup: Setup) -> Any:
    os.environ.update(setup.variables)
    sys.path.extend(entry for entry in setup.path if entry not in sys.path and Path(entry).exists())
    before = ran(setup.before)
    from swath.workers.ray.values import ActorServer  # noqa: PLC0415  imports torch, which `before` comes before

    return ActorServer(setup, before)
