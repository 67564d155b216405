"""One row per setting: what it is unless somebody says otherwise, what it may be, and what becomes of it.

    Setting   acts      `gamma = Setting(number(0, 1), default=0.99)` checked, kept
    NoEffect  does nothing here                                     checked, kept, warned of once
    Refused   cannot be had                                         raises, unless the value asks for nothing

No setting is ignored silently: what is not a row is unknown, and a row is of one of these kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from swath.errors import warn_of_no_effect
from swath.rollout_workers.config.copying import copied

if TYPE_CHECKING:
    from collections.abc import Callable

    from swath.rollout_workers.config.checks import Check

T = TypeVar("T")


class Unchanged:
    """The type of `UNCHANGED`."""

    def __repr__(self) -> str:
        return "<unchanged>"


UNCHANGED: Any = Unchanged()
"""Stands for a setting that a fluent method was not given."""


class Row(Protocol):
    """What every setting does."""

    name: str
    also: tuple[str, ...]

    def checked(self, value: object) -> Any:
        """The value as it will be kept; `ValueError` if it may not be had."""

    def keep(self, values: dict[str, Any], value: Any) -> None:
        """Keep a checked value, and say so if that does nothing."""

    def joined(self, present: Any, given: object) -> object:
        """What a fluent method or a dict makes of the present value and the given one."""

    def default(self) -> Any:
        """What it is if nobody said anything; the caller's own."""


class Setting(Generic[T]):
    """A setting that acts: an attribute of a config, checked where it is set.

    Args:
        check: `f(name, value)` gives the value as it is kept, or raises `ValueError`.
        default: what it is in a new config.
        also: other names, old ones among them.
        join: `f(present, given)`, for settings that are added to: fluent methods and dicts go through it.
    """

    name: str

    def __init__(
        self,
        check: Check[T],
        *,
        default: Any,
        also: tuple[str, ...] = (),
        join: Callable[[T, Any], Any] | None = None,
    ) -> None:
        self._default = default
        self._check = check
        self.also = also
        self._join = join

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...
    @overload
    def __get__(self, config: object, owner: type) -> T: ...
    def __get__(self, config: object | None, owner: type) -> Self | T:
        if config is None:
            return self
        value: T = vars(config)[self.name]
        return value

    def checked(self, value: object) -> T:
        """The value as it will be kept."""
        return self._check(self.name, value)

    def keep(self, values: dict[str, Any], value: T) -> None:
        """Keep a checked value."""
        values[self.name] = value

    def joined(self, present: T, given: object) -> object:
        """What is kept when `given` is added to `present`."""
        return given if self._join is None else self._join(present, given)

    def default(self) -> T:
        """The default, not shared with any other config."""
        fresh: T = copied(self._default)
        return fresh


class NoEffect(Setting[T]):
    """A setting of the field's that does nothing here: kept, and warned of once per process.

    Args:
        check: as for a `Setting`.
        why: what is done instead, or by whom.
        default: what it is in a new config.
        unless: true of values that ask for what is done anyway; None: of the default alone.
    """

    def __init__(self, check: Check[T], why: str, *, default: Any, unless: Callable[[T], bool] | None = None) -> None:
        super().__init__(check, default=default)
        self._why = why
        self._unless = unless or (lambda value: bool(value == default))

    def keep(self, values: dict[str, Any], value: T) -> None:
        """Keep a checked value, which does nothing."""
        super().keep(values, value)
        if not self._unless(value):
            warn_of_no_effect(self.name, self._why)


class Refused:
    """A setting of the field's that cannot be had here.

    Args:
        name: of the setting.
        why: and what to do instead.
        fine: values that ask for nothing, which are let pass.
    """

    also: tuple[str, ...] = ()

    def __init__(self, name: str, why: str, *, fine: tuple[object, ...] = ()) -> None:
        self.name = name
        self._why = why
        self._fine = (None, *fine)

    def checked(self, value: object) -> object:
        """The value, if it asks for nothing.

        Raises:
            ValueError: it asks for something.
        """
        if not any(value is fine or (type(value) is type(fine) and value == fine) for fine in self._fine):
            raise ValueError(f"{self.name}={value!r} is not served: {self._why}")
        return value

    def keep(self, values: dict[str, Any], value: object) -> None:
        """Nothing was asked for, nothing is kept."""

    def joined(self, present: object, given: object) -> object:  # noqa: ARG002  nothing is kept to join it to
        """What was given."""
        return given

    def default(self) -> object:
        """What asks for nothing."""
        return self._fine[-1]
