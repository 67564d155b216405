"""A worker's actor on Ray, and the messages between it and its driver.

This module imports nothing heavy: numpy and torch read how many threads they may have when they are imported.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from swath.owner import Owner
from swath.workers.hosting import WorkerObject, run_serialized
from swath.workers.tickets import Name

_KILL_S = 30.0


class Large(NamedTuple):
    """A large packed value; see `values`.

    Attributes:
        head: its structure.
        buffers: the memory of its arrays.
        references: Ray's references in it.
    """

    head: bytes
    buffers: list[Any]
    references: list[Any]


PackedValue: TypeAlias = bytes | Large

Answer: TypeAlias = tuple[Any, Large | bytes]
"""A reply; and the body of a parcel if it is large, which stays in Ray's store, else no bytes."""


class Setup(NamedTuple):
    """Start-up data of a worker.

    Attributes:
        name: the life of the worker.
        path: the driver's search path of modules.
        variables: variables of the environment, set before anything is imported.
        threads: torch's.
        initializer: bytes of `serialize_function`.
        build: the packed function that builds the object.
    """

    name: Name
    path: list[str]
    variables: dict[str, str]
    threads: int
    initializer: bytes
    build: PackedValue


class RayWorker:
    """The class of the actors. Its constructor cannot fail, so that every failure is an answer.

    Ray runs an actor that has no concurrency groups in the main thread of its process, one call after another.

    Args:
        setup: applied by the first call that needs it.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup: Setup | None = setup
        self._object = WorkerObject(setup.name)
        self._values: Any = None  # the module, imported when the initializer has run
        self._built: Any = None
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def swath_ping(self) -> None:
        """Answer as soon as the actor exists."""

    def swath_build(self) -> Answer:
        """Build the object."""
        with _exiting_on_fatal_errors():
            self._ensure_built()
            built: Answer = self._built
            return built

    def swath_answer(self, method: bytes, args: PackedValue) -> Answer:
        """Call a method of the object; its name comes as bytes, which Ray need not pickle."""
        with _exiting_on_fatal_errors():
            self._ensure_built()
            values = self._values
            outcome = self._object.answer(method.decode(), partial(values.unpack_copy, args))
            answer: Answer = values.pack_answer(outcome)
            return answer

    def swath_end(self) -> None:
        """Wait to be killed, then exit: the driver learns of the actor's end because this call fails."""
        threading.Event().wait(_KILL_S)
        os._exit(1)

    def _ensure_built(self) -> None:
        """Set the process up and build the object, once."""
        setup = self._setup
        if setup is None:
            return
        os.environ.update(setup.variables)
        sys.path.extend(entry for entry in setup.path if entry not in sys.path and Path(entry).exists())
        initialized = run_serialized(setup.initializer)
        from swath.workers.packing import initialize_process  # noqa: PLC0415  imports torch: after the initializer
        from swath.workers.ray import values  # noqa: PLC0415  the same

        initialize_process(setup.threads)
        self._values = values
        self._built = values.pack_answer(self._object.build(initialized, partial(values.unpack_copy, setup.build)))
        self._setup = None  # it may hold a policy in Ray's store


def public(name: str) -> Callable[..., Any]:
    """Return a method of an actor's class that calls the object's method of this name."""

    def forward(self: RayWorker, *args: Any, **kwargs: Any) -> Any:
        with _exiting_on_fatal_errors():
            self._ensure_built()
            return self._object.method(name)(*args, **kwargs)

    forward.__name__ = forward.__qualname__ = name
    return forward


@contextmanager
def _exiting_on_fatal_errors() -> Iterator[None]:
    """Exit the process after an error that is no `Exception`: Ray would keep the process alive, or hang.

    A fork of the process exits here, too: only its parent answers.
    """
    owner = Owner()
    try:
        yield
    except Exception:
        raise
    except BaseException as error:  # noqa: BLE001  Ray would go on
        traceback.print_exc()
        code = error.code if isinstance(error, SystemExit) else 1
        os._exit(code if isinstance(code, int) else code is not None)
    finally:
        if not owner.is_here:
            os._exit(0)
