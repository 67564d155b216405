"""Which worker is to call what: one function for all, or one each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

Function: TypeAlias = Callable[..., Any] | str
Functions: TypeAlias = Function | Sequence[Function]
Keywords: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Call(NamedTuple):
    """What one worker is to call.

    Attributes:
        func: a function of the worker, or the name of a method.
        kwargs: its keywords.
    """

    func: Function
    kwargs: Mapping[str, Any]


def one_each(func: Functions, kwargs: Keywords, workers: Sequence[int]) -> dict[int, Call]:
    """The call of each worker.

    Args:
        func: for all, or a list in the order of the workers.
        kwargs: likewise.
        workers: ids.

    Raises:
        ValueError: a list of another length.
    """
    for name, given in (("func", func), ("kwargs", kwargs)):
        if isinstance(given, list | tuple) and len(given) != len(workers):
            raise ValueError(
                f"{name} is a list of {len(given)}, and {len(workers)} workers are addressed: {list(workers)}; "
                "give one each, or a single one for all"
            )
    return dict(zip(workers, calls(func, kwargs), strict=False))


def in_turn(func: Functions, kwargs: Keywords, workers: Sequence[int]) -> list[tuple[int, Call]]:
    """The calls, each once, dealt to the workers in turn; a single one goes to each worker.

    Raises:
        ValueError: lists of different lengths.
    """
    if not workers:
        return []
    lengths = {len(given) for given in (func, kwargs) if isinstance(given, list | tuple)}
    if len(lengths) > 1:
        raise ValueError(f"func and kwargs are lists of different lengths, {sorted(lengths)}; give one each")
    number = lengths.pop() if lengths else len(workers)
    dealt = zip(range(number), calls(func, kwargs), strict=False)
    return [(workers[k % len(workers)], call) for k, call in dealt]


def calls(func: Functions, kwargs: Keywords) -> Iterable[Call]:
    """The calls, in order; without end if nothing is a list."""
    functions: Iterable[Any] = func if isinstance(func, list | tuple) else repeat(func)
    keywords: Iterable[Any] = kwargs if isinstance(kwargs, list | tuple) else repeat(kwargs)
    return (Call(each, given or {}) for each, given in zip(functions, keywords, strict=False))


def called(worker: Any, call: Call) -> Any:
    """What comes of it in a worker of this process."""
    if isinstance(call.func, str):
        return getattr(worker, call.func)(**call.kwargs)
    return call.func(worker, **call.kwargs)
