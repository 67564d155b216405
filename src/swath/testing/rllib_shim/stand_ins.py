"""Modules in the place of RLlib's: files in a folder that `ray.__path__` names first.

ray.rllib.old.place ──▶ folder/rllib/old/place/__init__.py ──▶ names of `FILLING`; any other name cannot be used
ray.rllib.….tests.x ──▶ folder/rllib/…/tests/x.py, a copy of the checkout's
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from swath.testing.by_value import pickle_by_value
from swath.testing.rllib_shim.helpers import FILLING

_IMPORTED = re.compile(r"^\s*(?:from|import)\s+(ray\.(?:rllib|tune)[\w.]*)", re.MULTILINE)
_STAND_IN = """from swath.testing.rllib_shim.stand_ins import names_of

globals().update(names_of(__name__))
"""


def names_of(module: str) -> Mapping[str, Any]:
    """What a module that stands for one of RLlib's has, with a class that cannot be used for every other name."""
    return {**FILLING.get(module, {}), "__getattr__": partial(_missing, module)}


def imported_by(files: Iterable[Path]) -> set[str]:
    """Modules of RLlib's that source files import."""
    return {module for file in files for module in _IMPORTED.findall(file.read_text())}


def write(folder: Path, modules: set[str], sources: Mapping[str, Path]) -> None:
    """Write modules.

    Args:
        folder: where.
        modules: which are to be there; what stands above them is, too.
        sources: files of which modules are made, by the modules' names.
    """
    packages = modules.difference(sources)
    for module in [*packages, *sources]:
        packages.update(".".join(module.split(".")[:depth]) for depth in range(2, module.count(".") + 1))
    for module in packages:
        (place := _place(folder, module)).mkdir(parents=True, exist_ok=True)
        (place / "__init__.py").write_text(_STAND_IN)
    for module, file in sources.items():
        shutil.copy(file, _place(folder, module).with_suffix(".py"))


def send_whole(folder: Path) -> None:
    """Pickle by value what is in the modules of the folder: other processes have no such modules."""
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            pickle_by_value(module)


def _place(folder: Path, module: str) -> Path:
    return folder.joinpath(*module.split(".")[1:])


def _missing(owner: str, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(f"module {owner!r} has no attribute {name!r}")
    return type(name, (), {"__module__": owner, "__init__": partial(_refuse, f"{owner}.{name}")})


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(f"{name} is not installed, and swath has nothing in its place")
