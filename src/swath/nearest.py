"""Which keywords a public class takes, and which one may have been meant by another."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


SAME = (("num_workers", "num_collectors"), ("num_envs", "envs_per_worker"))
"""Names that classes have for the same number."""


def suggestion(name: str, names: Collection[str]) -> str:
    """The end of a message: `; did you mean 'envs'?` if one of the names is near, or means the same; else nothing."""
    same = [other for group in SAME if name in group for other in group if other in names]
    near = same or get_close_matches(name, names, n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


def unexpected(owner: str, name: str, names: Collection[str]) -> TypeError:
    """The error for a keyword that a class does not take; `names` are those that it takes."""
    return TypeError(f"{owner} got an unexpected keyword argument {name!r}{suggestion(name, names)}")


def with_options(
    kind: Callable[P, T], own: type[Any] | None = None
) -> Callable[[Callable[[S, T], R]], Callable[Concatenate[S, P], R]]:
    """A method, `__init__` most often, that takes the fields of such a value as its arguments, and gets the value.

    Args:
        kind: the options.
        own: those that its signature shows; by default all of them.

    Raises:
        TypeError: an unknown keyword, one that is missing, or too many positional arguments.
    """
    shown = inspect.getattr_static(own or kind, "__init__")

    def decorated(method: Callable[[S, T], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(shown, assigned=())
        @wraps(method)
        def read(self: S, /, *args: P.args, **keywords: P.kwargs) -> R:
            require_fit(self, method, inspect.signature(kind), args, keywords)
            return method(self, kind(*args, **keywords))

        return read

    return decorated


def checked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method, `__init__` most often, that names a wrong keyword as `with_options` does."""

    @wraps(method)
    def read(self: S, /, *args: P.args, **keywords: P.kwargs) -> R:
        require_fit(self, method, inspect.signature(partial(method, self)), args, keywords)
        return method(self, *args, **keywords)

    return read


def require_fit(
    owner: object, method: Callable[..., Any], takes: inspect.Signature, args: Sequence[Any], keywords: Iterable[str]
) -> None:
    """Raise `TypeError` for an unknown keyword, one that is missing, or too many positional arguments."""
    name = type(owner).__name__ + ("" if method.__name__ == "__init__" else f".{method.__name__}")
    most = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in takes.parameters.values())
    if len(args) > most:
        raise TypeError(f"{name} takes at most {most} positional arguments, got {len(args)}")
    for keyword in keywords:
        if keyword not in takes.parameters:
            raise unexpected(name, keyword, takes.parameters)
    try:
        takes.bind(*args, **dict.fromkeys(keywords))
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
