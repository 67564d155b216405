"""A pytest plugin that runs tests written for RLlib's rollout workers on ours: `pytest -p swath.testing.rllib_shim`.

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

from swath import rollout_workers
from swath.rollout_workers import Filter, MultiAgentEnv
from swath.testing.rllib_shim import stand_ins
from swath.testing.shim import Shim, Table, ours, pickle_by_value, tables

_SHIM = Shim(__name__, "RLlib's rollout workers", "ray")
pytest_configure = _SHIM.pytest_configure
pytest_terminal_summary = _SHIM.pytest_terminal_summary

ENV_FOLDERS = "ray.rllib.examples.envs.classes", "ray.rllib.examples.env"
"""Where RLlib has the envs of its examples, and where it had them."""

_TABLES = tables(__file__)
TABLE: Table = {
    module: ours(names, stand_ins.RLLIB, stand_ins, rollout_workers) for module, names in _TABLES["names"].items()
}
"""Modules that the installed Ray lacks are here too, from 2.4 on."""

LEFT_OUT: Mapping[str, Mapping[str, str]] = _TABLES["left_out"]

_FOLDER = pytest.StashKey["TemporaryDirectory[str]"]()
_IMPORTED = re.compile(r"^\s*(?:from|import)\s+(ray\.(?:rllib|tune)[\w.]*)", re.MULTILINE)
_STAND_IN = """from swath.testing.rllib_shim.stand_ins import names_of

globals().update(names_of(__name__))
"""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Replace the names before anything of the user's is imported."""
    if not _SHIM.is_installed("ray"):
        return
    import_module("ray.cloudpickle")
    path = sys.modules["ray"].__path__
    early_config.stash[_FOLDER] = folder = TemporaryDirectory()
    paths = [Path(argument.partition("::")[0]).absolute() for argument in args]
    sources = {name: file for name, file in _sources(paths, Path(path[0])) if name not in TABLE}
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    imported = {name for file in [*files, *sources.values()] for name in _IMPORTED.findall(file.read_text())}
    _write(Path(folder.name), {*TABLE, *stand_ins.FILLING, *imported, *sources}, sources)
    path.insert(0, folder.name)
    _SHIM.apply(TABLE)
    _SHIM.patch.setattr(Filter, "clear_buffer", lambda own: own.reset_buffer(), raising=False)  # its old name
    _SHIM.patch.setattr(MultiAgentEnv, "num_agents", property(_num_agents, _set_num_agents))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put RLlib's names back, and remove the modules that were written."""
    _SHIM.pytest_unconfigure()
    if _FOLDER in config.stash:
        config.stash[_FOLDER].cleanup()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is listed; send what test modules have to other processes whole, where these names are not."""
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", None)).startswith(config.stash[_FOLDER].name):
            pickle_by_value(module)
    for item in items:
        for file, reasons in LEFT_OUT.items():
            if item.path.as_posix().endswith(f"/{file}") and item.name in reasons:
                item.add_marker(pytest.mark.skip(reason=reasons[item.name]))
        if isinstance(item, pytest.Function):
            pickle_by_value(item.module)


def _num_agents(env: MultiAgentEnv) -> int:
    number: int = vars(env).get("num_agents", len(env.agents))
    return number


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
