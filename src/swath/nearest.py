"""Checks of the keywords of public classes, which suggest the nearest name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


SYNONYMS = (("num_workers", "num_collectors"), ("num_envs", "envs_per_worker"))
"""Names of the same number in different classes."""


def suggestion(name: str, names: Collection[str]) -> str:
    """Return the end of a message, `; did you mean 'envs'?`, if one of the names is near or a synonym; else `""`."""
    synonyms = [other for group in SYNONYMS if name in group for other in group if other in names]
    matches = synonyms or get_close_matches(name, names, n=1, cutoff=0.7)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def unexpected_keyword(owner: str, name: str, names: Collection[str]) -> TypeError:
    """Return the error for an unknown keyword of a class, whose keywords are `names`."""
    return TypeError(f"{owner} got an unexpected keyword argument {name!r}{suggestion(name, names)}")


def with_options(
    kind: Callable[P, T], documented: type[Any] | None = None
) -> Callable[[Callable[[S, T], R]], Callable[Concatenate[S, P], R]]:
    """Decorate a method, usually `__init__`, to take the fields of an options class as arguments.

    The decorated method gets the options object. An unknown or missing keyword, or too many positional arguments, are a
    `TypeError` that names them.

    Args:
        kind: the options class.
        documented: the options class for the signature in the documentation; by default `kind`.
    """
    constructor = inspect.getattr_static(documented or kind, "__init__")

    def decorate(method: Callable[[S, T], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(constructor, assigned=())
        @wraps(method)
        def call(self: S, /, *args: P.args, **keywords: P.kwargs) -> R:
            require_fit(self, method, inspect.signature(kind), args, keywords)
            return method(self, kind(*args, **keywords))

        return call

    return decorate


def check_keywords(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate a method, usually `__init__`, to name a wrong keyword as `with_options` does."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **keywords: P.kwargs) -> R:
        require_fit(self, method, inspect.signature(partial(method, self)), args, keywords)
        return method(self, *args, **keywords)

    return call


def require_fit(
    owner: object, method: Callable[..., Any], shape: inspect.Signature, args: Sequence[Any], keywords: Iterable[str]
) -> None:
    """Raise `TypeError` for an unknown or missing keyword, or too many positional arguments."""
    name = type(owner).__name__ + ("" if method.__name__ == "__init__" else f".{method.__name__}")
    limit = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in shape.parameters.values())
    if len(args) > limit:
        raise TypeError(f"{name} takes at most {limit} positional arguments, got {len(args)}")
    for keyword in keywords:
        if keyword not in shape.parameters:
            raise unexpected_keyword(name, keyword, shape.parameters)
    try:
        shape.bind(*args, **dict.fromkeys(keywords))
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
