"""Which names of RLlib's are ours, and which of its own tests are left out: `tables.toml`, with the names looked up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from swath import rollout_workers
from swath.rollout_workers import Filter
from swath.testing import envs
from swath.testing.rllib_shim import stand_ins
from swath.testing.shim import Lent, Table, ours, tables

_TABLES = tables(__file__)

ENV_FOLDERS = ("ray.rllib.examples.envs.classes", "ray.rllib.examples.envs.utils", "ray.rllib.examples.env")
"""Where the envs of examples and tests are, or were; the first is where an installed Ray has them."""


TABLE: Table = {
    folder + module: ours(names, stand_ins, envs, rollout_workers)
    for module, names in _TABLES["names"].items()
    for folder in (ENV_FOLDERS if module.startswith(".") else ("",))
}
"""Modules that the installed Ray lacks are here too, from 2.4 on."""

LENT: Lent = {Filter: {"clear_buffer": lambda own: own.reset_buffer()}}
"""Names of old that RLlib's tests call."""

LEFT_OUT: Mapping[str, Mapping[str, str]] = _TABLES["left_out"]


def reason_to_leave_out(path: Path, test: str) -> str | None:
    """Why a test is not run; None: it is."""
    for file, reasons in LEFT_OUT.items():
        if path.as_posix().endswith(f"/{file}"):
            return reasons.get(test)
    return None
