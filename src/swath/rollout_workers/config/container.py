"""What holds the values of settings: fluent methods, attributes and dicts all come here."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, Self

from swath.errors import warn_of_no_effect
from swath.nearest import suggestion
from swath.rollout_workers.config.policy_spec import copied
from swath.rollout_workers.config.settings import (
    NAMES,
    REFUSED,
    SETTINGS,
    WITHOUT_EFFECT,
    Settings,
    merged,
    require_nothing,
)

_KEYS = {"lambda_": "lambda"}
"""What settings are called in dicts, where that is not the attribute's name."""


class _Unchanged:
    def __repr__(self) -> str:
        return "<unchanged>"


UNCHANGED: Any = _Unchanged()
"""Stands for a setting that was not given, or that there is not."""


class SettingsDict(Settings):
    """Values of settings, and the user's own keys beside them; also read and written as a dict, by any of its names."""

    _frozen: bool
    _own: dict[str, Any]

    def __init__(self) -> None:
        values = {name: copied(setting.default) for name, setting in SETTINGS.items()}
        vars(self).update(values, _own={}, _frozen=False)

    if not TYPE_CHECKING:  # a type checker must see which settings there are not

        def __setattr__(self, name: str, value: Any) -> None:
            self._require_thawed(name)
            if name in NAMES or not hasattr(type(self), name):
                self.set_all({name: value})
            elif callable(getattr(type(self), name)):
                raise AttributeError(f"{name} is a method of {type(self).__name__}: call it, do not set it")
            else:
                super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            found = UNCHANGED if name.startswith("__") or "_own" not in vars(self) else self._find(name)
            if found is UNCHANGED:
                raise AttributeError(f"{type(self).__name__} has no setting {name!r}{suggestion(name, NAMES)}")
            return found

    def freeze(self) -> None:
        """Refuse changes from now on; a copy can be thawed."""
        vars(self)["_frozen"] = True

    @property
    def is_frozen(self) -> bool:
        """Whether changes are refused."""
        return self._frozen

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """A copy that shares no container with this one; classes, functions and spaces are shared.

        Args:
            copy_frozen: whether the copy refuses changes; None: as this one does.
        """
        clone = object.__new__(type(self))
        frozen = self._frozen if copy_frozen is None else copy_frozen
        vars(clone).update(copied(vars(self)), _frozen=frozen)
        return clone

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """A new config with what the dict says; keys that are no settings are kept for policies, and warned of once.

        Raises:
            ValueError: a value out of range, or a setting that is refused.
        """
        return cls().update_from_dict(config_dict)

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Set what the dict says, all of it or nothing.

        Raises:
            ValueError: a value out of range, or a setting that is refused.
            AttributeError: the config is frozen.
        """
        given = {**config_dict, **config_dict.get("multiagent", {})}
        given.pop("multiagent", None)
        self.set_all(given, merge=True)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Settings that act, by attribute's name (`lambda_` is `"lambda"`), and own keys: copies."""
        values = {**{name: vars(self)[name] for name in SETTINGS}, **self._own}
        return {_KEYS.get(name, name): copied(value) for name, value in values.items()}

    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """Settings of a policy that differ from the worker's, checked, for `PolicySpec(config=…)`.

        Raises:
            KeyError: a name that is no setting; the message says which is near.
            ValueError: a value out of range, or a setting that is refused.
        """
        for name in settings:
            if name not in NAMES and name not in REFUSED:
                raise KeyError(f"{name!r} is no setting of {cls.__name__}{suggestion(name, NAMES)}")
        cls().set_all(settings)
        return {_KEYS.get(NAMES[name], NAMES[name]): value for name, value in settings.items() if name in NAMES}

    def get(self, key: str, default: Any = None) -> Any:
        """The value under any of its names, or the default."""
        found = self._find(key)
        return default if found is UNCHANGED else found

    def pop(self, key: str, *default: Any) -> Any:
        """The value; an own key is removed, a setting stays, since every config has it.

        Raises:
            KeyError: there is none, and no default.
        """
        if key not in self and default:
            return default[0]
        value = self[key]
        if key in self._own:
            self._require_thawed(key)
            del self._own[key]
        return value

    def __getitem__(self, key: str) -> Any:
        found = self._find(key)
        if found is UNCHANGED:
            raise KeyError(f"{key!r} is no setting of {type(self).__name__}{suggestion(key, NAMES)}")
        return found

    def __setitem__(self, key: str, value: Any) -> None:
        self.update_from_dict({key: value})

    def __contains__(self, key: str) -> bool:
        return self._find(key) is not UNCHANGED

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def keys(self) -> KeysView[str]:
        """Names, as in `to_dict`."""
        return self.to_dict().keys()

    def values(self) -> ValuesView[Any]:
        """Values, as in `to_dict`."""
        return self.to_dict().values()

    def items(self) -> ItemsView[str, Any]:
        """Names and values, as in `to_dict`."""
        return self.to_dict().items()

    def _given(self, **settings: Any) -> Self:
        """Set what a fluent method was given.

        Raises:
            TypeError: a keyword that is no setting.
        """
        given = {name: value for name, value in settings.items() if value is not UNCHANGED}
        for name, value in given.items():
            if not any(name in known for known in (NAMES, WITHOUT_EFFECT, REFUSED)):
                hint = suggestion(name, NAMES)
                raise TypeError(f"{name}={value!r} is no setting of {type(self).__name__}{hint}")
        self.set_all(given, merge=True)
        return self

    def set_all(self, given: Mapping[str, Any], *, merge: bool = False) -> None:
        """Set settings under any of their names, all of them or none; other names become own keys.

        Args:
            given: values by name.
            merge: add to the dicts that are there.
        """
        checked: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for name, value in given.items():
            self._require_thawed(name)
            attribute = NAMES.get(name)
            if name in REFUSED:
                require_nothing(name, value)
            elif attribute is None:
                own[name] = value
            else:
                setting = SETTINGS[attribute]
                whole = merged(vars(self)[attribute], value) if merge and setting.merged else value
                kept = setting.check(attribute, whole)
                if checked.setdefault(attribute, kept) != kept:
                    raise ValueError(f"{attribute} and {name}={value!r} are one setting; give one")
        vars(self).update(checked)
        for name, value in own.items():
            self._keep_own(name, value)

    def _keep_own(self, name: str, value: Any) -> None:
        """Keep a key that is no setting, for policies; say once that it does nothing else."""
        self._own[name] = value
        default, why = WITHOUT_EFFECT.get(name, (UNCHANGED, ""))
        if value == default or any(name in get_annotations(base) for base in type(self).__mro__):
            return
        unknown = (
            f"it is no setting of {type(self).__name__}{suggestion(name, NAMES)}; kept for policies as config[{name!r}]"
        )
        warn_of_no_effect(name, why or unknown)

    def _require_thawed(self, name: str) -> None:
        if self._frozen:
            raise AttributeError(
                f"Cannot set attribute {name!r} of an already frozen {type(self).__name__}: change a "
                "copy(copy_frozen=False) of it"
            )

    def _find(self, name: str) -> Any:
        """The value under any of its names; `UNCHANGED` if there is none."""
        if name in self._own:
            return self._own[name]
        if name in NAMES:
            return vars(self)[NAMES[name]]
        if name in WITHOUT_EFFECT:
            return WITHOUT_EFFECT[name][0]
        return None if name in REFUSED else UNCHANGED
