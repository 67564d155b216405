"""Which keywords a public class takes, and which one may have been meant by another."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


SAME = (("num_workers", "num_collectors"), ("num_envs", "envs_per_worker"))
"""Names that classes have for the same number."""


def suggestion(name: str, names: Iterable[str]) -> str:
    """The end of a message: `; did you mean 'envs'?` if one of the names is near, or means the same; else nothing."""
    names = list(names)
    same = [other for group in SAME if name in group for other in group if other in names]
    near = same or get_close_matches(name, names, n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


def unexpected(owner: str, name: str, names: Iterable[str]) -> TypeError:
    """The error for a keyword that a class does not take; `names` are those that it takes."""
    return TypeError(f"{owner} got an unexpected keyword argument {name!r}{suggestion(name, names)}")


def spelled(init: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """An `__init__` that says of a keyword that it does not take which one may have been meant.

    A word that is misspelt is named before one that is missing because of it. The signature stays what it is.
    """
    _, *names = inspect.signature(init).parameters

    @wraps(init)
    def spelling(self: S, /, *args: P.args, **keywords: P.kwargs) -> None:
        for name in keywords:
            if name not in names:
                raise unexpected(type(self).__name__, name, names)
        init(self, *args, **keywords)

    return spelling


def with_options(
    kind: Callable[P, T], own: type[Any] | None = None
) -> Callable[[Callable[[S, T], None]], Callable[Concatenate[S, P], None]]:
    """An `__init__` that takes the fields of such a value as its arguments, and gets the value.

    Args:
        kind: the options.
        own: those that its signature shows; by default all of them.

    Raises:
        TypeError: an unknown keyword, one that is missing, or more than two positional arguments.
    """
    takes = inspect.signature(kind)
    shown = inspect.getattr_static(own or kind, "__init__")

    def decorated(init: Callable[[S, T], None]) -> Callable[Concatenate[S, P], None]:
        @wraps(shown, assigned=())
        @wraps(init)
        def read(self: S, /, *args: P.args, **keywords: P.kwargs) -> None:
            name = type(self).__name__
            if len(args) > 2:
                raise TypeError(f"{name} takes at most 2 positional arguments (env, policy), got {len(args)}")
            for keyword in keywords:
                if keyword not in takes.parameters:
                    raise unexpected(name, keyword, takes.parameters)
            try:
                takes.bind(*args, **keywords)
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
            init(self, kind(*args, **keywords))

        return read

    return decorated
