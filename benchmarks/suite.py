"""Every benchmark, one after another; then docs/performance.md, its pictures and the figures of other pages.

    python benchmarks/suite.py [--quick] [--only NAME ...] [--fill]      # `make bench`

What each has found is kept in docs/figures; `--only` measures some anew, `--fill` only writes the pages. Ends with 1 if
a target is missed, or a script fails.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import machine
from figures import KEPT_IN, facts_of
from page import Measured, filled
from pictures import draw

HERE = Path(__file__).parent
ROOT = HERE.parent
KEPT = ROOT / "docs" / "figures"
PAGES = (
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "flying.md",
    ROOT / "docs" / "evaluation.md",
    ROOT / "README.md",
)
LIMIT_S = 900.0


@dataclass(frozen=True)
class Part:
    """A script, and how it is run.

    Attributes:
        script: in this folder.
        thorough: its arguments.
        quick: those for a first look.
    """

    script: str
    thorough: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()


PARTS = {
    "import": Part("import_time.py"),
    "memory": Part("collector_memory.py"),
    "in-process": Part("collector_local.py", (), ("--quick",)),
    "torchrl-envs": Part("torchrl_envs.py", (), ("--quick",)),
    "collectors": Part("collectors.py", (), ("--quick",)),
    "payload": Part("payload.py", (), ("--quick",)),
    "publishing": Part("publishing.py", (), ("--quick",)),
    "driver": Part("driver.py", ("--quick",), ("--quick",)),
    "driver-ray": Part("driver.py", ("--backend", "ray", "--quick"), ("--backend", "ray", "--quick")),
    "ray-backend": Part("ray_backend.py", ("--rounds", "4"), ("--rounds", "2")),
    "survival": Part("survival.py", (), ("--quick",)),
    "chaos": Part("chaos.py", ("--seconds", "40"), ("--seconds", "10")),
    "leaks": Part("leaks.py", ("--cycles", "8"), ("--cycles", "3")),
    "evaluator": Part("evaluator.py", (), ("--seconds", "0.5", "--rounds", "3")),
    "bias": Part("evaluation_bias.py", (), ("--evaluations", "10")),
    "coverage": Part("interval_coverage.py", (), ("--runs", "200")),
    "rollout-workers": Part("rollout_workers.py", ("--quick",), ("--quick",)),
    "rollout-worker-agents": Part("rollout_worker_agents.py", ("--quick",), ("--quick",)),
    "rollout-worker-chaos": Part("rollout_worker_chaos.py", ("--seconds", "20"), ("--seconds", "5", "--agents", "1")),
    "flying": Part("flying.py", (), ("--quick",)),
    "learning": Part(
        "learning.py", ("CartPole-v1", "Pendulum-v1", "InvertedPendulum-v5"), ("CartPole-v1", "--seeds", "1")
    ),
}
NOT_RUN = {
    "torchrl_curves.py": "trains for an hour; its curves are kept in docs/curves",
    "survival_ours.py": "survival.py runs it",
    "collector_alone.py": "collectors.py runs it",
}


def measure(name: str, *, quick: bool) -> Measured:
    """Run a part's script, whose output is shown as it comes."""
    part = PARTS[name]
    arguments = part.quick if quick else part.thorough
    print(f"\n── {name}: {' '.join((part.script, *arguments))}", flush=True)
    busy, began, failed = machine.busy(), time.monotonic(), ""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "facts"
        command = [sys.executable, HERE / part.script, *arguments]
        try:
            code = subprocess.run(
                command, env=os.environ | {KEPT_IN: str(kept)}, timeout=LIMIT_S, check=False
            ).returncode
            failed = "" if code in (0, 1) else f"it ended with {code}"
        except subprocess.TimeoutExpired:
            failed = f"it was ended after {LIMIT_S:g} s"
        facts = facts_of(kept)
    if not facts:
        failed = failed or "it found nothing"
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    said = f"python benchmarks/{' '.join((part.script, *arguments))}"
    return Measured(said, time.monotonic() - began, f"{today}, {busy}", machine.lines(), facts, failed)


def fill() -> dict[str, Measured]:
    """Write the pages, and draw the pictures, of all that is kept."""
    parts = {name: Measured.load(file) for name in PARTS if (file := KEPT / f"{name}.json").exists()}
    for name, part in parts.items():
        draw(part, KEPT / f"{name}.png")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
    return parts


def main() -> int:
    """Measure, then write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs: a look, not a measurement")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--fill", action="store_true", help="measure nothing, write the pages of what is kept")
    asked = parser.parse_args()
    KEPT.mkdir(exist_ok=True)
    began = time.monotonic()
    for name in [] if asked.fill else asked.only:
        measure(name, quick=asked.quick).save(KEPT / f"{name}.json")
    parts = fill()
    verdicts = [pair for part in parts.values() for pair in part.verdicts]
    missed = [f"{title}: {one['what']}" for title, one in verdicts if not one["passed"]]
    failed = [f"{name}: {part.failed}" for name, part in parts.items() if part.failed]
    print(
        f"\n{(time.monotonic() - began) / 60:.0f} minutes; {len(missed)} targets missed, {len(failed)} scripts failed"
    )
    for line in (*missed, *failed):
        print(f"  {line}")
    return int(bool(missed or failed))


if __name__ == "__main__":
    sys.exit(main())
