"""Which policies learn: some ids, or a function that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from swath.words import kind_of

PoliciesToTrain: TypeAlias = set[str] | list[str] | tuple[str, ...] | frozenset[str] | Callable[..., bool]


@dataclass(frozen=True)
class AmongThese:
    """True for the ids that learn.

    Attributes:
        ids: those.
    """

    ids: frozenset[str]

    def __call__(self, policy_id: str, batch: Any = None) -> bool:  # noqa: ARG002  part of what it stands for
        """Whether that policy learns."""
        return policy_id in self.ids


def ids_or_function(name: str, value: object) -> PoliciesToTrain | None:
    """The value, if it says which policies learn; None stands for all.

    Raises:
        TypeError: it does not; a string is no collection of ids here.
    """
    if value is None or callable(value):
        return value
    if isinstance(value, list | set | tuple | frozenset) and all(isinstance(each, str) for each in value):
        return value
    raise TypeError(
        f"{name}={value!r} is {kind_of(value)}; it must be a list, set or tuple of policy ids, "
        "or f(policy_id, batch=None) -> bool"
    )


def is_policy_to_train(value: object) -> Callable[..., bool] | None:
    """The question as a function `f(policy_id, batch=None) -> bool`; None if all learn.

    Raises:
        TypeError: it is no collection of ids and no function.
    """
    given = ids_or_function("is_policy_to_train", value)
    return given if given is None or callable(given) else AmongThese(frozenset(given))
