"""Pickling of values for other processes, with errors that name the part that cannot be pickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import cloudpickle

_DEEPEST = 20


def pickle_value(value: Any) -> bytes:
    """Pickle a value by cloudpickle.

    Raises:
        TypeError: it cannot be pickled; the message names the variable, attribute or entry at fault.
    """
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(reason(error, value)) from error
    return data


def reason(error: Exception, value: Any) -> str:
    """Describe why a value cannot be pickled: the error, and the variable, attribute or entry at fault."""
    path, ids = list[str](), {id(value)}
    for _ in range(_DEEPEST):
        unseen = ((name, part) for name, part in _parts(value) if id(part) not in ids)
        found = next(((name, part) for name, part in unseen if not _can_be_pickled(part)), None)
        if found is None:
            break
        name, value = found
        ids.add(id(value))
        path += [name] if name else []
    return f"{error}; that is {path[-1]}, of type {type(value).__name__}" if path else str(error)


def _can_be_pickled(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001  classes of users raise anything
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts that are pickled with a value, with their names for users, or `""`."""
    kind = type(value)
    if isinstance(value, partial):
        yield from (("", part) for part in (value.func, *value.args))
        yield from ((f"the argument {name!r}", part) for name, part in value.keywords.items())
    elif isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, FunctionType):
        yield from _variables(value)
    elif isinstance(value, Mapping):
        yield from ((f"the entry {key!r}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (("", part) for part in value)
    else:
        owner = value.__name__ if isinstance(value, type) else kind.__name__
        named = not (kind.__module__.startswith("swath.") and is_dataclass(value))
        for name, part in getattr(value, "__dict__", {}).items():
            yield f"the attribute {name!r} of {owner}" if named else "", part


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function refers to: variables of outer functions, globals, and defaults."""
    code = function.__code__
    place = f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the variable has no value yet
            yield f"the variable {name!r} of {place}", cell.cell_contents
    for name in {*_names(code)} & function.__globals__.keys():
        yield f"the global variable {name!r} of {place}", function.__globals__[name]
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"a default of {place}", value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
