"""What a module has, for who named something in it that there is not."""

from __future__ import annotations

from inspect import isclass, isfunction
from typing import TYPE_CHECKING

from swath.nearest import suggestion

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

MOST_LISTED = 5


def likely_in(module: ModuleType, name: str) -> str:
    """The end of a message: the name that may have been meant; empty if none is near."""
    return suggestion(name, (other for other, one in _public(module).items() if callable(one)))


def envs_in(module: ModuleType) -> str:
    """The end of a message: the classes of envs that a module brings, or its functions; empty if it has neither."""
    own = {name: one for name, one in _public(module).items() if _is_of(module, one)}
    names = [name for name, one in own.items() if isclass(one) and hasattr(one, "reset") and hasattr(one, "step")]
    names = names or [name for name, one in own.items() if isfunction(one)]
    more = " and others" if len(names) > MOST_LISTED else ""
    return f"; {module.__name__} has {', '.join(names[:MOST_LISTED])}{more}" if names else ""


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: one for name, one in vars(module).items() if not name.startswith("_")}


def _is_of(module: ModuleType, one: Any) -> bool:
    """Whether it was written there, or in a module of this package."""
    return f"{getattr(one, '__module__', None)}.".startswith(f"{module.__name__}.")
