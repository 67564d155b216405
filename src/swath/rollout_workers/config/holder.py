"""What holds the values of settings, and is the only way in: fluent methods, attributes and dicts all come here."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar, Self

from swath.errors import warn_of_no_effect
from swath.nearest import suggestion
from swath.rollout_workers.config.copying import Copied, copied
from swath.rollout_workers.config.refused import REFUSED
from swath.rollout_workers.config.settings import UNCHANGED, NoEffect, Setting

if TYPE_CHECKING:
    from swath.rollout_workers.config.settings import Row

FROZEN = "Cannot set attribute {name!r} of an already frozen {kind}: change a copy(copy_frozen=False) of it"


class Holder(Copied):
    """Values by setting, and the user's own keys beside them.

    Attributes:
        rows: every setting by its attribute's name: those that act, that have no effect, that are refused.
        names: the attribute's name by every name that stands for it.
    """

    rows: ClassVar[Mapping[str, Row]] = {}
    names: ClassVar[Mapping[str, str]] = {}
    _frozen: bool
    _own: dict[str, Any]

    def __init_subclass__(cls) -> None:
        """Collect the settings that the class and its bases declare."""
        super().__init_subclass__()
        declared: dict[str, Row] = {}
        for base in cls.__mro__:
            for name, row in vars(base).items():
                if isinstance(row, Setting):
                    declared.setdefault(name, row)
        cls.rows = {**declared, **REFUSED}
        cls.names = {name: row.name for row in cls.rows.values() for name in (row.name, *row.also)}

    def __init__(self) -> None:
        values = {name: row.default() for name, row in self.rows.items() if isinstance(row, Setting)}
        vars(self).update(values, _own={}, _frozen=False)

    if not TYPE_CHECKING:  # a type checker must see which settings there are not

        def __setattr__(self, name: str, value: Any) -> None:
            self._thawed(name)
            if name in self.names or not hasattr(type(self), name):
                self._set({name: value})
            elif callable(getattr(type(self), name)):
                raise AttributeError(f"{name} is a method of {type(self).__name__}: call it, do not set it")
            else:
                super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__") and "_own" in vars(self):
                found = self._find(name)
                if found is not UNCHANGED:
                    return found
            raise AttributeError(f"{type(self).__name__} has no setting {name!r}{self.nearest(name)}")

    def freeze(self) -> None:
        """Refuse changes from now on; a copy can be thawed."""
        vars(self)["_frozen"] = True

    @property
    def is_frozen(self) -> bool:
        """Whether changes are refused."""
        return self._frozen

    @classmethod
    def nearest(cls, name: str) -> str:
        """Words that suggest the setting that may have been meant; empty if none is near."""
        return suggestion(name, cls.names)

    def _given(self, arguments: Mapping[str, Any]) -> Self:
        """Set what a fluent method was given: its `locals()`, as its first statement.

        Raises:
            TypeError: a keyword that is no setting.
        """
        given = {name: value for name, value in arguments.items() if name not in ("self", "others")}
        given.update(arguments.get("others", {}))
        given = {name: value for name, value in given.items() if value is not UNCHANGED}
        for name in given:
            if name not in self.names:
                raise TypeError(f"{name}={given[name]!r} is no setting of {type(self).__name__}{self.nearest(name)}")
        self._add(given)
        return self

    def _add(self, given: Mapping[str, Any]) -> None:
        """Set what is given, joining it to what is there where a setting is added to; all of it or nothing."""
        for name in given:
            self._thawed(name)
        self._set({name: self._joined(name, value) for name, value in given.items()})

    def _joined(self, name: str, value: object) -> object:
        attribute = self.names.get(name)
        return value if attribute is None else self.rows[attribute].joined(vars(self).get(attribute), value)

    def _set(self, given: Mapping[str, Any]) -> None:
        rows = {name: self.rows[self.names[name]] for name in given if name in self.names}
        checked = {name: row.checked(given[name]) for name, row in rows.items()}
        self._only_once(rows, checked)
        for name, row in rows.items():
            row.keep(vars(self), checked[name])
        for name, value in given.items():
            if name not in rows:
                self._keep_own(name, value)

    @staticmethod
    def _only_once(rows: Mapping[str, Row], checked: Mapping[str, Any]) -> None:
        """Refuse two values for one setting under two of its names."""
        named: dict[str, str] = {}
        for name, row in rows.items():
            other = named.setdefault(row.name, name)
            if other != name and checked[other] != checked[name]:
                raise ValueError(f"{other}={checked[other]!r} and {name}={checked[name]!r} are one setting; give one")

    def _keep_own(self, name: str, value: Any) -> None:
        self._own[name] = value
        if not any(name in get_annotations(base) for base in type(self).__mro__):
            why = (
                f"it is no setting of {type(self).__name__}{self.nearest(name)}; kept for policies as config[{name!r}]"
            )
            warn_of_no_effect(name, why)

    def _thawed(self, name: str) -> None:
        if self._frozen:
            raise AttributeError(FROZEN.format(name=name, kind=type(self).__name__))

    def _find(self, name: str) -> Any:
        """The value under any of its names; `UNCHANGED` if there is none."""
        if name in self._own:
            return self._own[name]
        attribute = self.names.get(name)
        if attribute is None:
            return UNCHANGED
        return vars(self)[attribute] if attribute in vars(self) else self.rows[attribute].default()

    def _values(self) -> dict[str, Any]:
        """Settings that act by attribute's name, then own keys; not copied."""
        acting = (row for row in self.rows.values() if isinstance(row, Setting) and not isinstance(row, NoEffect))
        return {**{row.name: vars(self)[row.name] for row in acting}, **self._own}

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """A copy that shares no container with this one; classes, functions and spaces are shared.

        Args:
            copy_frozen: whether the copy refuses changes; None: as this one does.
        """
        clone = object.__new__(type(self))
        frozen = self._frozen if copy_frozen is None else copy_frozen
        vars(clone).update(copied(vars(self)), _frozen=frozen)
        return clone
