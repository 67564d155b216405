"""What may have been meant by a name that there is not."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
S = TypeVar("S")


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
