"""Values nested in dicts and tuples, as those of Dict and Tuple spaces are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gymnasium import Space, spaces


def map_nest(function: Callable[..., Any], nest: Any, *others: Any) -> Any:
    """`function(leaf, *leaves_of_the_others)` at each leaf of `nest`, in a nest of the same structure.

    Whatever is no dict or tuple is a leaf. Named tuples stay what they are, dicts of other types become plain ones.

    Args:
        function: called once per leaf.
        nest: says what the structure is.
        others: nests with at least that structure; what stands in the place of a leaf may be a nest itself.

    Raises:
        KeyError: an entry is missing in one of the others.
        ValueError: one of the others has more or fewer parts.
    """
    if isinstance(nest, dict):
        return {key: map_nest(function, part, *(other[key] for other in others)) for key, part in nest.items()}
    if isinstance(nest, tuple):
        parts = [map_nest(function, *these) for these in zip(nest, *others, strict=True)]
        return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)
    return function(nest, *others)


def nested(space: Space[Any], leaves: Iterable[Any]) -> Any:
    """Leaves, in the order in which a space has them, nested as the space is."""
    return nest_of(template_of(space), leaves)


def leaves_of(nest: Any, template: Any = None) -> list[Any]:
    """The leaves of a nest in order; in the order of the template, if one is given."""
    structure = nest if template is None else template
    if not isinstance(structure, dict | tuple):
        return [nest]
    leaves: list[Any] = []
    map_nest(lambda _, leaf: leaves.append(leaf), structure, nest)
    return leaves


def nest_of(template: Any, leaves: Iterable[Any]) -> Any:
    """The leaves in a nest of the template's structure."""
    left = iter(leaves)
    return map_nest(lambda _: next(left), template) if isinstance(template, dict | tuple) else next(left)


def has_empty(nest: Any) -> bool:
    """Whether a dict or tuple without entries is in it, or is it."""
    if not isinstance(nest, dict | tuple):
        return False
    return not nest or any(map(has_empty, nest.values() if isinstance(nest, dict) else nest))


def template_of(space: Space[Any]) -> Any:
    """A nest of the structure of a space's values, with the spaces of its leaves."""
    if isinstance(space, spaces.Dict):
        return {name: template_of(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(template_of(part) for part in space.spaces)
    return space
