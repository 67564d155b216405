"""Environments of the libraries compared with, made at first use: their requirements must not meet ours."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parent.parent / ".venv-peers"


@dataclass(frozen=True)
class Library:
    """A library compared with, and what it runs with."""

    name: str
    packages: tuple[str, ...]


TORCHRL = Library(
    "torchrl", ("ray==2.60.0", "torch==2.13.0", "torchrl==0.14.1", "tensordict==0.14.3", "gymnasium==1.4.0")
)
SB3 = Library("sb3", ("stable_baselines3==2.9.2", "torch==2.13.0", "gymnasium==1.4.0"))
RLLIB = Library("rllib", ("ray[rllib]==2.60.0", "torch==2.13.0"))


def python_of(library: Library) -> Path:
    """The interpreter of its environment."""
    home = HOME / library.name
    python, stamp = home / "bin" / "python", home / ".has-all"
    wanted = "\n".join(library.packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {library.name} into {home}, to measure against", flush=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *library.packages], check=True)
        stamp.write_text(wanted)
    return python
