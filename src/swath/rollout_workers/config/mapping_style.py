"""A config used as a dict: by name, under any of its names."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Self

from swath.rollout_workers.config.copying import copied
from swath.rollout_workers.config.holder import Holder
from swath.rollout_workers.config.settings import UNCHANGED

_KEYS = {"lambda_": "lambda"}
"""What settings are called in dicts, where that is not the attribute's name."""

_SUB_DICT = "multiagent"


class MappingStyle(Holder):
    """What dicts do, over settings that act and the user's own keys."""

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
        flat = {name: value for name, value in config_dict.items() if name != _SUB_DICT}
        self._add({**flat, **config_dict.get(_SUB_DICT, {})})
        return self

    def to_dict(self) -> dict[str, Any]:
        """Settings that act, by attribute's name (`lambda_` is `"lambda"`), and own keys: copies."""
        return {_KEYS.get(name, name): copied(value) for name, value in self._values().items()}

    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """Settings of a policy that differ from the worker's, checked, for `PolicySpec(config=…)`.

        Raises:
            KeyError: a name that is no setting; the message says which is near.
            ValueError: a value out of range, or a setting that is refused.
        """
        for name in settings:
            if name not in cls.names:
                raise KeyError(f"{name!r} is no setting of {cls.__name__}{cls.nearest(name)}")
        rows = {cls.names[name]: value for name, value in settings.items()}
        for name, value in rows.items():
            cls.rows[name].checked(value)
        return {_KEYS.get(name, name): value for name, value in rows.items()}

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
            self._thawed(key)
            del self._own[key]
        return value

    def __getitem__(self, key: str) -> Any:
        found = self._find(key)
        if found is UNCHANGED:
            raise KeyError(f"{key!r} is no setting of {type(self).__name__}{self.nearest(key)}")
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
