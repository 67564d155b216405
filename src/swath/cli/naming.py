"""Envs and policies by the names that all commands have for them.

CartPole-v1          an id of Gymnasium's
module:Corridor-v0   an id that importing the module registers
module:Corridor      a class, or a function that makes an env

Modules are those that are installed, and those in the current folder.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from swath.cli.failure import UsageError, with_traceback
from swath.nearest import suggestion

_VERSIONED = re.compile(r"(?!ALE/).+-v\d+")
"""Ids that Gymnasium knows before an env is made; those of ALE are registered only then."""


def env_named(name: str) -> Any:
    """What makes the env: an id of Gymnasium's, or what `module:name` is in that module.

    Raises:
        UsageError: there is no such module, or no such env.
        BrokenOffError: the module raises when it is imported.
    """
    from gymnasium import registry, spec  # noqa: PLC0415  not needed by `swath --help`
    from gymnasium.error import Error  # noqa: PLC0415

    module, colon, identifier = name.rpartition(":")
    if colon:
        found = getattr(_imported(module, name), identifier, None)
        if callable(found) and identifier not in registry:
            return found
    if _VERSIONED.fullmatch(identifier):
        try:
            spec(identifier)
        except Error as unknown:
            raise UsageError(f"{name}: {unknown}") from None
    elif colon:
        object_named(name)
        raise UsageError(f"{name} makes no env; name a class or function that makes one, or an id")
    return name


def object_named(name: str) -> Any:
    """What `module:name` is.

    Raises:
        UsageError: there is no such module, or no such name in it.
        BrokenOffError: the module raises when it is imported.
    """
    module, _, attribute = name.rpartition(":")
    imported = _imported(module, name)
    if not hasattr(imported, attribute):
        raise UsageError(f"{name}: {module} has no {attribute!r}{suggestion(attribute, vars(imported))}")
    return getattr(imported, attribute)


def _imported(module: str, name: str) -> Any:
    """The module; those of the current folder are found, here and by all workers, as by `python -m`."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name and f"{module}.".startswith(f"{missing.name}."):
            raise UsageError(
                f"{name}: no module named {missing.name} is installed or in this folder; give the command where it is"
            ) from None
        raise UsageError(f"{name}: {module} cannot be imported: {missing}") from missing
    except (Exception, SystemExit) as error:
        line = f"{type(error).__name__}: {error}; {name}: {module} cannot be imported"
        raise with_traceback(line, error) from error
