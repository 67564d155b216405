"""Run all benchmarks in turn, then write docs/performance.md, its pictures and the figures of other pages.

    python benchmarks/suite.py [--quick] [--only NAME ...] [--fill]      # `make bench`

Results are kept in docs/figures; `--only` measures some of them, `--fill` only writes the pages. Ends with 1 if a
target is missed, or a script fails. The text between two marks of a page is replaced, the rest stays:

    <!-- figures: collectors -->            tables, verdicts and the picture of a part
    <!-- end -->
    <!-- figures: collectors tables -->     its tables alone
    <!-- end -->

Three parts summarise the others: `summary` has a figure for each thing that users bring, `machine` describes the
machine, `missed` counts the targets that were reached.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rounds import FIGURES_VARIABLE, parser

HERE = Path(__file__).parent
ROOT = HERE.parent
KEPT = ROOT / "docs" / "figures"
PAGES = tuple(ROOT / page for page in ("docs/performance.md", "docs/index.md", "README.md"))
LIMIT_S = 900.0
PARTS = {
    "import": "import_time.py",
    "in-process": "collector_local.py",
    "torchrl-envs": "torchrl_envs.py",
    "policy-plan": "policy_plan.py",
    "torchrl-programs": "torchrl_programs.py",
    "env-processes": "env_processes.py --quick",
    "tensors": "gpu.py cpu --quick --only pendulums-64 pendulums-4096",
    "collectors": "collectors.py",
    "publishing": "publishing.py",
    "driver": "driver.py --quick",
    "driver-ray": "driver.py --backend ray --quick",
    "survival": "survival.py",
    "chaos": "chaos.py --seconds 40",
    "evaluator": "evaluator.py",
    "bias": "evaluation_bias.py",
    "coverage": "interval_coverage.py",
    "rollout-workers": "rollout_workers.py --quick",
    "many-agents": "many_agents.py --quick",
    "rollout-worker-chaos": "rollout_worker_chaos.py --seconds 20",
}
"""Scripts and their arguments, by the name of their place on the page."""


class Row(NamedTuple):
    """A row of the summary.

    Attributes:
        brings: what a user brings.
        uses: what it is compared with.
        part: name of the part.
        title: how the table above the figure begins.
        what: the figure.
    """

    brings: str
    uses: str
    part: str
    title: str
    what: str


SUMMARY = (
    Row(
        "A TorchRL program on 8 Gymnasium envs, one import changed",
        "TorchRL's `Collector`",
        "torchrl-programs",
        "serial8_ppo",
        "swath × torchrl",
    ),
    Row(
        "The same with two workers on Ray",
        "TorchRL's `RayCollector`",
        "torchrl-programs",
        "ray_serial8_ppo",
        "swath × torchrl",
    ),
    Row(
        "A TorchRL env of one's own that steps 64 envs as tensors",
        "TorchRL's `Collector`",
        "tensors",
        "64 pendulums",
        "Collector, TorchRL's env × TorchRL's Collector",
    ),
    Row(
        "8 Gymnasium envs and a function",
        "the loop by hand",
        "in-process",
        "CartPole-v1, 8 envs",
        "Collector, same policy × loop by hand",
    ),
    Row(
        "A simulator that steps 4,096 envs as tensors, on the CPU",
        "the loop by hand",
        "tensors",
        "4,096 pendulums",
        "Collector × loop by hand",
    ),
    Row(
        "16 HalfCheetahs in 2 processes, one policy",
        "Gymnasium's `AsyncVectorEnv`, by hand",
        "env-processes",
        "16 envs, 2 processes: HalfCheetah",
        "env_processes × AsyncVectorEnv by hand",
    ),
    Row(
        "The same",
        "TorchRL's `ParallelEnv` in its `Collector`",
        "env-processes",
        "16 envs, 2 processes: HalfCheetah",
        "env_processes × ParallelEnv of TorchRL",
    ),
    Row(
        "Gymnasium envs and a function, two workers on Ray",
        "RLlib's `EnvRunnerGroup`",
        "collectors",
        "2 workers with 8 envs",
        "RayCollector, sync × RLlib's EnvRunnerGroup",
    ),
    Row(
        "A loop over RLlib's `RolloutWorker`, 8 envs, advantages",
        "RLlib's `RolloutWorker`",
        "rollout-workers",
        "CartPole-v1, sub-envs: 8",
        "RolloutWorker × RLlib's RolloutWorker",
    ),
)
BLOCK = re.compile(r"(<!-- figures: ([\w-]+)( tables)? -->\n).*?(<!-- end -->)", re.DOTALL)
PACKAGES = ("swath", "torch", "tensordict", "numpy", "gymnasium", "ray", "torchrl", "pandas")
OTHERS = ("TorchRL", "RLlib", "Stable-Baselines3", "by hand", "plain", "a write", "percentiles", "Student")
OURS_COLOUR, OTHERS_COLOUR = "#2b6cb0", "#b8bec6"

Fact = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """The figures of one script.

    Attributes:
        command: repeats the measurement.
        seconds: its duration.
        day: of the measurement, and the load before it.
        machine: description, in lines.
        facts: tables, courses and verdicts, in the order in which they were printed.
        failed: how it ended, if it failed.
    """

    command: str
    seconds: float
    day: str
    machine: list[str]
    facts: list[Fact]
    failed: str = ""

    @property
    def verdicts(self) -> list[tuple[str, Fact]]:
        """Return verdicts, each with the title of the table above it."""
        found, title = [], ""
        for fact in self.facts:
            title = fact["title"] if fact["kind"] == "table" else title
            found += [(title, fact)] if fact["kind"] == "verdict" else []
        return found


def measure(name: str, *, quick: bool) -> Measured:
    """Run a part's script and show its output."""
    script, *arguments = PARTS[name].split() + ["--quick"] * quick
    print(f"\n── {name}: {script} {' '.join(arguments)}", flush=True)
    day, began, failed = dt.datetime.now(tz=dt.UTC).date().isoformat(), time.monotonic(), ""
    day += f", load before it {os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "facts"
        kept.touch()
        command = [sys.executable, HERE / script, *arguments]
        try:
            ran = subprocess.run(command, env=os.environ | {FIGURES_VARIABLE: str(kept)}, timeout=LIMIT_S, check=False)
            failed = "" if ran.returncode in (0, 1) else f"it ended with {ran.returncode}"
        except subprocess.TimeoutExpired:
            failed = f"it was ended after {LIMIT_S:g} s"
        facts = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    failed = failed or ("" if facts else "it found nothing")
    command_line = " ".join(("python benchmarks/" + script, *arguments))
    return Measured(command_line, time.monotonic() - began, day, machine(), facts, failed)


def machine() -> list[str]:
    """Describe hardware, system and versions, a line each."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = models[0] if models else platform.machine()
    found = {package.name.lower(): package.version for package in distributions()}
    return [
        f"{len(os.sched_getaffinity(0))} cores, {processor}, {memory:.0f} GiB of memory; one thread per process",
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        ", ".join(f"{name} {found[name]}" for name in PACKAGES if name in found),
    ]


# ---- the pages


def filled(text: str, parts: Mapping[str, Measured]) -> str:
    """Return the page with the figures of these parts; other parts stay."""

    def block(found: re.Match[str]) -> str:
        begin, name, only, end = found.groups()
        if name in MADE_OF_ALL:
            lines = MADE_OF_ALL[name](parts)
        elif name in parts:
            lines = _section(name, parts[name], tables_only=bool(only))
        else:
            return found[0]
        return begin + "\n" + "\n".join(lines).rstrip("\n") + "\n\n" + end

    return BLOCK.sub(block, text)


def _section(name: str, part: Measured, *, tables_only: bool) -> Iterator[str]:
    tables = [fact for fact in part.facts if fact["kind"] == "table"]
    if tables_only:
        yield from (line for fact in tables for line in _table(fact))
        return
    title = ""
    for kind, facts in groupby(part.facts, key=lambda fact: fact["kind"]):
        if kind == "table":
            for fact in facts:  # where there is one column the picture has it all
                title = fact["title"] if len(fact["columns"]) == 1 else ""
                yield from () if title else _table(fact)
        elif kind == "verdict":
            yield from _verdicts(title, list(facts))
    yield from (f"**{part.failed}**: what is missing here was not measured.", "") if part.failed else ()
    yield from (f"![{tables[0]['title']}](figures/{name}.png)", "") if tables else ()
    yield f"`{part.command}`, {part.day}, {part.seconds:.0f} s."


def _table(fact: Fact) -> Iterator[str]:
    yield "| " + " | ".join([fact["title"], *fact["columns"]]) + " |"
    yield "|---|" + "---:|" * len(fact["columns"])
    for name, cells in fact["rows"].items():
        yield "| " + " | ".join([name, *cells]) + " |"
    yield ""


def _verdicts(title: str, verdicts: list[Fact]) -> Iterator[str]:
    yield from (f"| {title} | measured | target | |", "|---|---:|---:|---|")
    for fact in verdicts:
        wanted = fact["wanted"] if fact["passed"] else f"{fact['wanted']}: **missed**"
        yield f"| {fact['what']} | {fact['got']} | {wanted} | {fact['note']} |"
    yield ""


def _missed(parts: Mapping[str, Measured]) -> Iterator[str]:
    passed = [fact["passed"] for part in parts.values() for _, fact in part.verdicts if fact["wanted"]]
    yield f"{sum(passed)} of {len(passed)} targets are reached; tables say which are **missed**."


def _machine(parts: Mapping[str, Measured]) -> Iterator[str]:
    for lines in {tuple(part.machine): None for part in parts.values()}:
        yield from (f"- {line}" for line in lines)


def _summary(parts: Mapping[str, Measured]) -> Iterator[str]:
    yield from ("| You bring | compared with | frames a second | one command |", "|---|---|---:|---|")
    for row in SUMMARY:
        verdicts = parts[row.part].verdicts if row.part in parts else []
        for title, fact in verdicts:
            if title.startswith(row.title) and fact["what"] == row.what:
                yield f"| {row.brings} | {row.uses} | {fact['got']} × | `.venv/bin/{parts[row.part].command}` |"
    yield ""


MADE_OF_ALL = {"summary": _summary, "missed": _missed, "machine": _machine}


# ---- the pictures


def draw(part: Measured, file: Path) -> None:
    """Draw curves if there are any, else the first column of each table as bars; nothing without tables."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    tables, courses = ([fact for fact in part.facts if fact["kind"] == kind] for kind in ("table", "course"))
    if not tables:
        return
    shares = [1] * len(courses[0]["lines"]) if courses else [0.3 * len(table["rows"]) + 0.4 for table in tables]
    figure, axes = plt.subplots(
        len(shares), 1, figsize=(8, sum(shares) + 0.6 * bool(courses)), height_ratios=shares, squeeze=False,
        sharex=bool(courses), sharey=bool(courses), layout="constrained",
    )  # fmt: skip
    if courses:
        _curves(courses[0], axes[:, 0])
        figure.suptitle(f"{courses[0]['title']}: {courses[0]['unit']}", fontsize=9, x=0.01, ha="left")
    else:
        for table, axis in zip(tables, axes[:, 0], strict=True):
            _bars(table, axis)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _colour(name: str) -> str:
    return OTHERS_COLOUR if any(word in name for word in OTHERS) else OURS_COLOUR


def _bars(table: Fact, axis: Any) -> None:
    names, sizes = list(table["bars"]), [size or 0.0 for size in table["bars"].values()]
    bars = axis.barh(names, sizes, color=[_colour(name) for name in names], height=0.7)
    axis.bar_label(bars, [cells[0] for cells in table["rows"].values()], padding=4, fontsize=8)
    axis.set_title(f"{table['title']}: {table['columns'][0]}", fontsize=9, loc="left")
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.xaxis.set_visible(False)
    axis.tick_params(axis="y", length=0, labelsize=8)
    axis.spines[["top", "right", "bottom"]].set_visible(False)


def _curves(course: Fact, axes: Any) -> None:
    """Draw curves below each other, on one linear scale, with a line at 0 s."""
    for (name, points), axis in zip(course["lines"].items(), axes, strict=True):
        seconds, sizes = zip(*points, strict=True)
        axis.fill_between(seconds, sizes, step="mid", color=_colour(name))
        axis.axvline(0, color="#c53030", linewidth=1)
        axis.set_title(name, fontsize=9, loc="left", pad=2)
        axis.tick_params(labelsize=8)
        axis.yaxis.set_major_formatter(lambda size, _: f"{size:,.0f}")
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("seconds", fontsize=8)


def fill() -> dict[str, Measured]:
    """Write the pages and draw the pictures from all kept figures."""
    files = {name: KEPT / f"{name}.json" for name in PARTS}
    kept = {name: Measured(**json.loads(file.read_text("utf-8"))) for name, file in files.items() if file.exists()}
    for name, part in kept.items():
        draw(part, KEPT / f"{name}.png")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), kept), encoding="utf-8")
    return kept


def main() -> int:
    """Measure, then write the pages."""
    command_line = parser(__doc__)
    command_line.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help=", ".join(PARTS)
    )
    command_line.add_argument(
        "--fill", action="store_true", help="measure nothing, write the pages from the kept figures"
    )
    options = command_line.parse_args()
    KEPT.mkdir(exist_ok=True)
    began = time.monotonic()
    for name in [] if options.fill else options.only:
        found = json.dumps(asdict(measure(name, quick=options.quick)), indent=1, ensure_ascii=False)
        (KEPT / f"{name}.json").write_text(found + "\n", encoding="utf-8")
    parts = fill()
    verdicts = [pair for part in parts.values() for pair in part.verdicts]
    missed = [f"{title}: {fact['what']}" for title, fact in verdicts if not fact["passed"]]
    failed = [f"{name}: {part.failed}" for name, part in parts.items() if part.failed]
    minutes = (time.monotonic() - began) / 60
    print(f"\n{minutes:.0f} minutes; {len(missed)} targets missed, {len(failed)} scripts failed")
    for line in (*missed, *failed):
        print(f"  {line}")
    return int(bool(missed or failed))


if __name__ == "__main__":
    sys.exit(main())
