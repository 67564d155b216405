"""What runs first in a new worker: a function that travels by value, so that opening it imports nothing else.

    first ─▶ travelling: bytes ─▶ new process, nothing imported yet ─▶ ran ─▶ torch, numpy, all the rest

The module where the function is defined is not imported over there, for that may import anything; what the function
refers to itself, is.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle

from swath.workers.hosting import attempted, sending
from swath.workers.outcome import Outcome, Value


def travelling(function: Callable[[], Any] | None) -> bytes:
    """The function, ready to travel; empty for none.

    Raises:
        TypeError: something that it refers to cannot.
    """
    if function is None:
        return b""
    with sending(f"before={function!r}", "a worker"), _by_value(_home(function)):
        data: bytes = cloudpickle.dumps(function)
    return data


def ran(function: bytes) -> Outcome:
    """What became of it, here."""
    return attempted(_run, function) if function else Value(None)


def _run(function: bytes) -> None:
    pickle.loads(function)()  # noqa: S301  our own driver wrote it


def _home(function: Any) -> ModuleType | None:
    """The module that is to be left out of it; none for what every interpreter has."""
    while isinstance(function, partial | MethodType):
        function = function.func if isinstance(function, partial) else function.__func__
    named = function if isinstance(function, FunctionType | type) else type(function)
    top = named.__module__.partition(".")[0]
    return None if top in sys.stdlib_module_names else sys.modules.get(named.__module__)


@contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    if module is None or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
