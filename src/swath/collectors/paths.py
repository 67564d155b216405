"""Attribute paths as text, `"policy.layers[0].weight"`: parsed, never evaluated."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

# Python 3.11 counts the depth of `ast.parse` once for all threads: two at once can end in a SystemError.
_PARSING = threading.Lock()
_PART = r"\.?([A-Za-z_]\w*)|\[([^\]]+)\]"
_PATH = rf"(?!\.)(?:{_PART})+"


def follow(root: Any, path: str) -> Any:
    """What the path leads to from `root`.

    Raises:
        AttributeError: a part is missing; the message names it.
        ValueError: the text is no path.
    """
    if re.fullmatch(_PATH, path) is None:
        raise ValueError(f"{path!r} is no path: write names, dots and [literal], as in 'policy.layers[0].weight'")
    value = root
    parts = [(name, None) if name else (None, _literal(item, path)) for name, item in re.findall(_PART, path)]
    for name, item in parts:
        try:
            value = getattr(value, name) if name else value[item]
        except (AttributeError, LookupError, TypeError) as error:
            items = f", whose items are [0] to [{len(value) - 1}]" if isinstance(value, list | tuple) else ""
            what, kind = item if name is None else repr(name), type(value).__name__
            missing = f"{what} of the path {path!r} is missing on {kind}{items}"
            raise AttributeError(missing) from error
    return value


def call_at(root: Any, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call what the path leads to; what cannot be called is returned.

    Raises:
        AttributeError: a part is missing.
        ValueError: arguments for something that cannot be called.
    """
    found = follow(root, path)
    if callable(found):
        return found(*args, **kwargs)
    if args or kwargs:
        raise ValueError(f"{path!r} is of type {type(found).__name__}, which takes no arguments")
    return found


def paired(
    list_of_args: Sequence[Sequence[Any]] | None, list_of_kwargs: Sequence[Mapping[str, Any]] | None, n: int
) -> list[tuple[Sequence[Any], Mapping[str, Any]]]:
    """The arguments of each call; of `n` calls without arguments if there are no lists.

    Raises:
        ValueError: the lists are not of the same length.
    """
    given = [len(one) for one in (list_of_args, list_of_kwargs) if one is not None] or [n]
    if given[0] != given[-1]:
        raise ValueError(f"list_of_args has {given[0]} entries, list_of_kwargs {given[-1]}; give both the same length")
    return list(zip(list_of_args or [()] * given[0], list_of_kwargs or [{}] * given[0], strict=True))


def _literal(text: str, path: str) -> Any:
    try:
        with _PARSING:
            return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"[{text}] in the path {path!r} is no literal") from error
