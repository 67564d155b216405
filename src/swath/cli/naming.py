"""Envs by the names that all commands have for them, and what else `module:name` is.

CartPole-v1          an id of Gymnasium's
module:Corridor-v0   an id that importing the module registers
module:Corridor      a class, or a function that makes an env

Modules are those that are installed, and those in the current folder.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from swath.cli.failure import UsageError, told_if_broken_off
from swath.cli.offers import envs_in, likely_in
from swath.nearby import near

ABSENT = object()
ATARI = "ALE/"
"""Begins the ids that are registered only where an env is made."""


def env_named(name: str) -> Any:
    """An env source: what `module:name` is in that module, or else an id of Gymnasium's.

    Raises:
        UsageError: there is no such module, or no such env.
    """
    from gymnasium import registry  # noqa: PLC0415  not needed by `swath --help`

    _, colon, attribute = name.partition(":")
    found = object_named(name, default=ABSENT) if colon else ABSENT
    if found is not ABSENT and attribute not in registry:
        return found
    if not name.startswith(ATARI):
        _require_registered(name)
    return name


def maker_named(name: str) -> Any:
    """The same, for commands with workers that need envs of their own.

    Raises:
        UsageError: there is no such module or env, or what is there makes none.
    """
    found = env_named(name)
    if isinstance(found, str) or callable(found):
        return found
    raise UsageError(f"{name} is of type {type(found).__name__}; name a class or function that makes an env, or an id")


def require_env(name: str | None, example: str) -> str:
    """The name of an env that there is.

    Args:
        name: as the user gave it, if so.
        example: a command line that has one.

    Raises:
        UsageError: no name, or no such env.
        BrokenOffError: its module cannot be imported, for what its own lines raise.
    """
    found = require_name(name, example)
    with told_if_broken_off(found, move="without its module there is no env; mend that first"):
        env_named(found)
    return found


def require_name(name: str | None, example: str) -> str:
    """The same, for a command that has modules imported by another process: only ids are looked for here.

    Raises:
        UsageError: no name, or no such id.
    """
    if name is None:
        raise UsageError(f"{example.split()[1]}: name an env, such as: {example}")
    if ":" not in name:
        env_named(name)
    return name


def object_named(name: str, default: Any = None) -> Any:
    """What `module:name` is.

    Args:
        name: module and name.
        default: given back where the module has no such name; `None` raises.

    Raises:
        UsageError: there is no such module, or it cannot be imported; no such name in it, without a default. What the
            module itself raises leaves as it is.
    """
    module, _, attribute = name.partition(":")
    imported = _imported(module, name)
    found = getattr(imported, attribute, default)
    if not attribute:
        raise UsageError(f"{name}: {module} has no name after the colon{envs_in(imported)}")
    if found is None:
        raise UsageError(f"{name}: {module} has no {attribute}{likely_in(imported, attribute)}")
    return found


def _imported(module: str, name: str) -> Any:
    if not module or module.startswith("."):
        raise UsageError(f"{name}: no module before the colon; name one in full, such as package.module:Class")
    if module.endswith(".py"):
        right = module.removesuffix(".py").replace("/", ".")
        raise UsageError(f"{name}: name the module, not its file: {right}{name.removeprefix(module)}")
    _look_here()
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if not f"{module}.".startswith(f"{missing.name}."):
            raise UsageError(f"{name}: {module} cannot be imported: {missing}") from missing
        raise UsageError(
            f"{name}: no module named {missing.name} is installed or in this folder; give the command where it is"
        ) from None
    except SyntaxError as error:
        where = f"{near(error.filename)}:{error.lineno}: " if error.filename else ""
        raise UsageError(f"{name}: {module} cannot be imported: {where}{type(error).__name__}: {error.msg}") from error


def _look_here() -> None:
    """Have modules of the current folder found, here and by all workers, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _require_registered(name: str) -> None:
    """Look for an id as `gymnasium.make` does, which takes the newest version where none is named.

    Raises:
        UsageError: there is none.
    """
    from gymnasium import spec  # noqa: PLC0415  see above
    from gymnasium.envs.registration import find_highest_version, parse_env_id  # noqa: PLC0415
    from gymnasium.error import Error  # noqa: PLC0415

    identifier = name.rpartition(":")[2]
    try:
        namespace, plain, version = parse_env_id(identifier)
        if version is not None or find_highest_version(namespace, plain) is None:
            spec(identifier)
    except Error as unknown:
        raise UsageError(_with_way(name, unknown)) from None


def _with_way(name: str, unknown: Exception) -> str:
    """What Gymnasium says of an unknown id, with what may have been meant, or how else envs are named."""
    from gymnasium.error import NameNotFound  # noqa: PLC0415  see above

    module, colon, identifier = name.partition(":")
    said = str(unknown).rstrip(".")
    is_unlike_all = said.endswith("doesn't exist")  # there is no id that could have been meant
    if not colon:
        way = "; name one of your own as module:Class, module:function or module:id"
        return said + (way if is_unlike_all else "")
    imported, text = _imported(module, name), f"{name}: {module} has no {identifier}"
    if isinstance(unknown, NameNotFound) and (likely := likely_in(imported, identifier)):
        return text + likely
    return f"{text}, and as an id: {said}" + (envs_in(imported) if is_unlike_all else "")
