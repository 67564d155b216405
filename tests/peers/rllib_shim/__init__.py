"""A pytest plugin that runs tests written for RLlib's rollout workers on ours: `pytest -p peers.rllib_shim`.

    pytest -p … ──▶ our names in ray.rllib.… ──▶ conftests and tests are imported ──▶ run ──▶ score, names put back

Ray must be installed. Modules in the place of RLlib's, old places included, are written to a temporary folder that
`ray.__path__` names first, with our names and a few helpers of its tests. Names that we do not have can be imported,
but not used. A checkout of RLlib need not be importable: modules of its tests and the envs of its examples are copied
from where the tests that run are, so that they import our names; envs that are not there from the installed Ray.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from peers.rllib_shim import stand_ins
from peers.shim import Shim, pickle_by_value
from swath import rollout_workers
from swath.rollout_workers import Filter, MultiAgentEnv

_SHIM = Shim(__name__, "RLlib's rollout workers", "ray", stand_ins, rollout_workers)
TABLE = _SHIM.table
"""Modules that the installed Ray lacks are here too, from 2.4 on."""

pytest_configure = _SHIM.pytest_configure
pytest_terminal_summary = _SHIM.pytest_terminal_summary

ENV_FOLDERS = "ray.rllib.examples.envs.classes", "ray.rllib.examples.env"
"""Where RLlib has the envs of its examples, and where it had them."""

_IMPORTED = re.compile(r"^\s*(?:from|import)\s+(ray\.(?:rllib|tune)[\w.]*)", re.MULTILINE)
_STAND_IN = """from functools import partial
from peers.rllib_shim.stand_ins import missing

__getattr__ = partial(missing, __name__)
"""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Replace the names before anything of the user's is imported."""
    if not _SHIM.is_installed():
        return
    path = import_module("ray").__path__
    folder = TemporaryDirectory()
    early_config.add_cleanup(folder.cleanup)
    paths = [Path(argument.partition("::")[0]).absolute() for argument in args]
    sources = {name: file for name, file in _sources(paths, Path(path[0])) if name not in TABLE}
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    imported = {name for file in [*files, *sources.values()] for name in _IMPORTED.findall(file.read_text())}
    _write(Path(folder.name), {*TABLE, *imported, *sources}, sources)
    path.insert(0, folder.name)
    early_config.add_cleanup(_SHIM.patch.undo)
    _SHIM.apply()
    _SHIM.patch.setattr(Filter, "clear_buffer", lambda own: own.reset_buffer(), raising=False)  # its old name
    _SHIM.patch.setattr(MultiAgentEnv, "num_agents", property(_num_agents, _set_num_agents))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As with any plugin of ours, and modules that were written are sent whole, too."""
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", None)).startswith(sys.modules["ray"].__path__[0]):
            pickle_by_value(module)
    _SHIM.pytest_collection_modifyitems(items)


def _num_agents(env: MultiAgentEnv) -> int:
    return int(vars(env).get("num_agents", len(env.agents)))


def _set_num_agents(env: MultiAgentEnv, number: int) -> None:
    """Before it was a property of RLlib's, envs set it."""
    vars(env)["num_agents"] = number


def _sources(paths: Sequence[Path], ray: Path) -> Iterator[tuple[str, Path]]:
    """Modules of examples' envs, under both of their places, and of tests; those of checkouts come last, and count."""
    near = (folder for path in paths for folder in (path / "rllib", path, *path.parents))
    for rllib in (ray / "rllib", *{folder for folder in near if folder.name == "rllib" and folder.is_dir()}):
        for folder in ENV_FOLDERS:
            for name, file in _modules(rllib.parent.joinpath(*folder.split(".")[1:]), "*.py"):
                yield from ((f"{place}.{name}", file) for place in ENV_FOLDERS)
        yield from ((f"ray.rllib.{name}", file) for name, file in _modules(rllib, "tests/*.py"))


def _modules(folder: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    for file in folder.rglob(pattern):
        parts = file.relative_to(folder).with_suffix("").parts
        if name := ".".join(part for part in parts if part != "__init__"):
            yield name, file


def _write(folder: Path, modules: set[str], sources: Mapping[str, Path]) -> None:
    """Write modules, each as a package, with what stands above them; those of `sources` are copies of files."""
    for parts in (module.split(".") for module in modules):
        for depth in range(2, len(parts) + 1):
            name, place = ".".join(parts[:depth]), folder.joinpath(*parts[1:depth])
            place.mkdir(exist_ok=True)
            (place / "__init__.py").write_text(sources[name].read_text() if name in sources else _STAND_IN)
