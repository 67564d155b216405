"""A pytest plugin that runs tests written for RLlib's rollout workers on ours: `pytest -p swath.testing.rllib_shim`.

    pytest -p … ──▶ our names in ray.rllib.… ──▶ conftests and tests are imported ──▶ run ──▶ score, names put back

Ray must be installed. Modules in the place of RLlib's own, old places included, are written to a temporary folder, with
our names and a few helpers of its tests. Names that we do not have can be imported, but not used. A checkout of RLlib
need not be importable: `ray.rllib.….tests` are found where the tests that run are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from _pytest.terminal import TerminalReporter

from swath.testing.by_value import pickle_by_value
from swath.testing.rllib_shim import stand_ins
from swath.testing.rllib_shim.helpers import FILLING
from swath.testing.rllib_shim.left_out import reason_to_leave_out
from swath.testing.rllib_shim.table import ENV_FOLDERS, LENT, TABLE
from swath.testing.swapping import Swap, require_swapped

_FOLDER = pytest.StashKey["TemporaryDirectory[str]"]()
_SWAP = pytest.StashKey[Swap]()
_MISSING = pytest.StashKey[str]()


def _sources(arguments: Sequence[str], ray: Path) -> Iterator[tuple[str, Path]]:
    """Modules of RLlib's tests in the checkouts that are named, and of its examples' envs in the installed Ray."""
    paths = [Path(argument.partition("::")[0]).absolute() for argument in arguments]
    near = (folder for path in paths for folder in (path / "rllib", path, *path.parents))
    for checkout in dict.fromkeys(folder for folder in near if folder.name == "rllib" and folder.is_dir()):
        for file in checkout.rglob("tests/*.py"):
            if file.name != "__init__.py":
                yield ".".join(("ray", "rllib", *file.relative_to(checkout).with_suffix("").parts)), file
    for file in ray.joinpath(*ENV_FOLDERS[0].split(".")[1:]).rglob("*.py"):
        inside = file.relative_to(ray.joinpath(*ENV_FOLDERS[0].split(".")[1:])).with_suffix("").parts
        for folder in ENV_FOLDERS:
            if file.name != "__init__.py" and (name := ".".join((folder, *inside))) not in TABLE:
                yield name, file


def _files(arguments: Sequence[str]) -> Iterator[Path]:
    for path in (Path(argument.partition("::")[0]) for argument in arguments):
        yield from path.rglob("*.py") if path.is_dir() else [path] if path.suffix == ".py" and path.is_file() else []


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Replace the names before anything of the user's is imported."""
    try:
        import ray  # noqa: PLC0415  of which there may be none
        import ray.cloudpickle  # noqa: PLC0415
    except ModuleNotFoundError as error:
        early_config.stash[_MISSING] = str(error)
        return
    early_config.stash[_FOLDER] = folder = TemporaryDirectory()
    sources = dict(_sources(args, Path(ray.__file__).parent))
    imported = stand_ins.imported_by([*_files(args), *sources.values()])
    stand_ins.write(Path(folder.name), {*TABLE, *FILLING, *imported}, sources)
    ray.__path__.insert(0, folder.name)
    early_config.stash[_SWAP] = swap = Swap(TABLE, LENT)
    swap.apply()


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run without Ray.

    Raises:
        pytest.UsageError: it cannot be imported, or the plugin was named too late.
    """
    missing, swapped = config.stash.get(_MISSING, None), _SWAP in config.stash
    require_swapped("swath.testing.rllib_shim", "Ray", "ray", missing, swapped=swapped)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put RLlib's names back, and remove the modules that were written."""
    if _SWAP in config.stash:
        config.stash[_SWAP].undo()
        config.stash[_FOLDER].cleanup()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is listed; send what test modules have to other processes whole, where these names are not."""
    stand_ins.send_whole(Path(config.stash[_FOLDER].name))
    for item in items:
        if (reason := reason_to_leave_out(item.path, item.name)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        if isinstance(item, pytest.Function):
            pickle_by_value(item.module)


def pytest_report_header() -> str:
    """Say that the tests do not run on what they name."""
    return "swath: in the place of RLlib's rollout workers; the score is at the end"


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """The score, and what was left out and why."""
    stats = terminalreporter.stats
    left_out = stats.get("skipped", [])
    bad = len(stats.get("failed", [])) + len(stats.get("error", []))
    terminalreporter.section("swath in the place of RLlib")
    terminalreporter.write_line(f"score: {len(stats.get('passed', []))} passed, {bad} failed, {len(left_out)} left out")
    for report in left_out:
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"left out: {report.nodeid}: {str(reason).removeprefix('Skipped: ')}")
