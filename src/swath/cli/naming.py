"""Envs and policies by the names that all commands have for them.

CartPole-v1          an id of Gymnasium's
ALE/Pong-v5          an id of Atari's: with the usual preprocessing
module:Corridor-v0   an id that importing the module registers
module:Corridor      a class, or a function that makes an env

Modules are those that are installed, and those in the current folder.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swath.cli.failure import UsageError, with_traceback
from swath.extras import need
from swath.nearest import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSIONED = re.compile(r".+-v\d+")
FRAMES_IN_A_STACK = 4


def env_named(name: str, kwargs: Mapping[str, Any]) -> Any:
    """What makes the env: an id of Gymnasium's, or a callable.

    Args:
        name: as above.
        kwargs: keywords for what makes it.

    Raises:
        UsageError: there is no such module, or no such env.
        BrokenOffError: the module raises when it is imported.
    """
    from gymnasium import make, registry, spec
    from gymnasium.error import Error

    module, colon, identifier = name.rpartition(":")
    if colon:
        found = getattr(_imported(module, name), identifier, None)
        if callable(found) and identifier not in registry:
            return partial(found, **kwargs) if kwargs else found
    if name.startswith("ALE/"):
        return partial(preprocessed, name, **kwargs)
    if _VERSIONED.fullmatch(identifier):
        try:
            spec(identifier)
        except Error as unknown:
            raise UsageError(f"{name}: {unknown}") from None
    elif colon:
        object_named(name)
        raise UsageError(f"{name} makes no env; name a class or function that makes one, or an id")
    return partial(make, name, **kwargs) if kwargs else name


def preprocessed(name: str, **kwargs: Any) -> Any:
    """An Atari game as agents are used to it: 84 by 84, grey, every fourth frame, a stack of four of these."""
    import gymnasium as gym
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    need("cv2", extra="atari", why=f"for {name}")
    gym.register_envs(need("ale_py", extra="atari", why=f"for {name}"))
    game = gym.make(name, **{"frameskip": 1, **kwargs})
    return FrameStackObservation(AtariPreprocessing(game), FRAMES_IN_A_STACK)


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
            where = "is installed or in this folder; give the command where it is"
            raise UsageError(f"{name}: no module named {missing.name} {where}") from None
        raise UsageError(f"{name}: {module} cannot be imported: {missing}") from missing
    except (Exception, SystemExit) as error:
        line = f"{type(error).__name__}: {error}; {name}: {module} cannot be imported"
        raise with_traceback(line, error) from error
