"""The worker's side of a call, wherever the worker lives: its object is built once, then its methods are called.

    initializer ─▶ build ─▶ object ─▶ method(…) ─▶ Value | Error

An exception is an answer. What is no `Exception` (`SystemExit`, say) ends the worker: it is not caught here.

The initializer travels by value to processes that have imported nothing yet: the module that defines it is not
imported there, because it may import anything; modules that the function itself refers to are. So this module imports
nothing heavy.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import cloudpickle

from swath.errors import SwathError, note_source
from swath.pickles import pickle_value
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.tickets import Name

THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Environment variables that limit the threads of a process; read when numpy, torch and the like are imported."""


class WorkerObject:
    """The object that answers the calls of a worker; used by one thread at a time.

    Args:
        name: the life of the worker.
    """

    def __init__(self, name: Name) -> None:
        self.name = name
        self._object: Any = None

    def build(self, initialized: Outcome, load: Callable[[], Callable[[], Any]]) -> Outcome:
        """Build the object by the function that `load` returns, unless the initializer failed."""

        def build() -> None:
            with note_source(f"the construction of {self.name}"):
                self._object = load()()

        return initialized if isinstance(initialized, Error) else run_and_capture(build)

    def answer(self, method: str, load: Callable[[], Sequence[Any]]) -> Outcome:
        """Call a method of the object with the arguments that `load` returns."""
        return run_and_capture(lambda: self.method(method)(*load()))

    def method(self, name: str) -> Callable[..., Any]:
        """Return a method of the object.

        Raises:
            SwathError: there is no object.
        """
        if self._object is None:
            raise SwathError(f"{self.name} was not built, so {name}() cannot be called; spawn another")
        method: Callable[..., Any] = getattr(self._object, name)
        return method


def run_and_capture(function: Callable[..., Any], *args: Any) -> Outcome:
    """Run the function and capture its result or exception; an `Error` that it returns is the outcome itself."""
    try:
        value = function(*args)
    except Exception as error:  # noqa: BLE001  an exception of users' code is an answer
        return Error(error)
    return value if isinstance(value, Error) else Value(value)


@contextmanager
def pickling(name: str, place: str) -> Iterator[None]:
    """Raise exceptions as a `TypeError` that names the object and the place it cannot be sent to."""
    try:
        yield
    except Exception as error:
        raise TypeError(
            f"{name} cannot be sent to {place}: {error}; make what it refers to in the worker, inside it"
        ) from error


def serialize_function(function: Callable[[], Any] | None) -> bytes:
    """Pickle an initializer by value; `None` gives no bytes.

    Raises:
        TypeError: something that it refers to cannot be pickled.
    """
    if function is None:
        return b""
    module = _module_to_inline(function)
    with pickling(f"initializer={function!r}", "a worker"), ExitStack() as stack:
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        return pickle_value(function)


def run_serialized(function: bytes) -> Outcome:
    """Run a pickled initializer and capture its result or exception."""

    def load_and_run() -> None:
        pickle.loads(function)()  # noqa: S301  our own driver wrote it

    return run_and_capture(load_and_run) if function else Value(None)


def _module_to_inline(function: Any) -> ModuleType | None:
    """Return the module that must not be imported for the function; `None` if every interpreter has it."""
    while isinstance(function, partial):
        function = function.func
    name: str = function.__module__
    is_standard = name.partition(".")[0] in sys.stdlib_module_names
    return None if is_standard or name in cloudpickle.list_registry_pickle_by_value() else sys.modules.get(name)
