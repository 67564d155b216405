"""How a worker answers, wherever it lives: its object is built once, then its methods are called.

    before ─▶ build ─▶ object ─▶ method(…) ─▶ Value | Error

An exception is an answer. What is no `Exception` (`SystemExit`, say) is the end of the worker: it is not caught here.

What comes before travels by value, to processes where nothing is imported yet: the module that defines it is not
imported over there, for that may import anything; what it refers to itself, is. So this module imports nothing heavy.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import cloudpickle

from swath.errors import SwathError, noted
from swath.pickles import pickled
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.tickets import Name

THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables that say how many threads a process may have; read when numpy, torch and the like are imported."""


class Hosted:
    """A worker's object in its place; used by one thread at a time.

    Args:
        name: which life of which worker.
    """

    def __init__(self, name: Name) -> None:
        self.name = name
        self._object: Any = None

    def build(self, before: Outcome, load: Callable[[], Callable[[], Any]]) -> Outcome:
        """Make the object with what `load` gives, if what comes before it went well; the value is `None`."""

        def make() -> None:
            with noted(f"the construction of {described(self.name)}"):
                self._object = load()()

        return before if isinstance(before, Error) else attempted(make)

    def answer(self, method: str, load: Callable[[], Sequence[Any]]) -> Outcome:
        """Call a method of the object with the arguments that `load` gives."""
        return attempted(lambda: self.method(method)(*load()))

    def method(self, name: str) -> Callable[..., Any]:
        """A method of the object.

        Raises:
            SwathError: there is no object.
        """
        if self._object is None:
            raise SwathError(f"{described(self.name)} was not built, so {name}() cannot be called; spawn another")
        method: Callable[..., Any] = getattr(self._object, name)
        return method


def attempted(function: Callable[..., Any], *args: Any) -> Outcome:
    """What became of it."""
    try:
        return Value(function(*args))
    except Exception as error:  # noqa: BLE001  whatever users' code raises is an answer
        return Error(error)


@contextmanager
def sending(what: str, place: str) -> Iterator[None]:
    """Say what cannot be pickled, and where it was to go, as a `TypeError`."""
    try:
        yield
    except Exception as error:
        raise TypeError(
            f"{what} cannot be sent to {place}: {error}; make what it refers to in the worker, inside it"
        ) from error


def described(name: Name) -> str:
    """The worker in words."""
    return f"worker {name.worker} (life {name.life})"


def travelling(function: Callable[[], Any] | None) -> bytes:
    """The function, ready to travel; empty for none.

    Raises:
        TypeError: something that it refers to cannot.
    """
    if function is None:
        return b""
    home = _home(function)
    with sending(f"before={function!r}", "a worker"):
        if home is not None:
            cloudpickle.register_pickle_by_value(home)
        try:
            data = pickled(function)
        finally:
            if home is not None:
                cloudpickle.unregister_pickle_by_value(home)
    return data


def ran(function: bytes) -> Outcome:
    """What became of it, here."""
    return attempted(_run, function) if function else Value(None)


def _run(function: bytes) -> None:
    pickle.loads(function)()  # noqa: S301  our own driver wrote it


def _home(function: Any) -> ModuleType | None:
    """The module that is to be left out of it; none for what every interpreter has, or travels so already."""
    while isinstance(function, partial):
        function = function.func
    home: str = function.__module__
    left = home.partition(".")[0] in sys.stdlib_module_names or home in cloudpickle.list_registry_pickle_by_value()
    return None if left else sys.modules.get(home)
