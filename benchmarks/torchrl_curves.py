"""What TorchRL users' scripts learn with our collector and, by changing one import, with TorchRL's own.

    python benchmarks/torchrl_curves.py            # examples × collectors × seeds, some minutes each; then the pictures
    python benchmarks/torchrl_curves.py --draw     # the pictures again, from the CSV files in docs/curves

Needs swath[torchrl,plot]. Ends with 1 if a run with our collector misses the bar of its example.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/curves"
IMPORTS = {"Swath": "from swath import Collector", "TorchRL": "from torchrl.collectors import Collector"}
COLOURS = {"Swath": "#0b6e4f", "TorchRL": "#9aa5b1"}
SEEDS = 0, 1
SCORE = "mean return of 20 episodes: "


@dataclass(frozen=True)
class Example:
    """A script, the mean return it must reach with the most probable actions, and how its curve is drawn.

    Attributes:
        name: of the script in `examples/`.
        title: of the picture.
        bar: least mean return of 20 episodes.
        smooth: how many points of the curve a point of the line is the mean of.
    """

    name: str
    title: str
    bar: float
    smooth: int


EXAMPLES = (
    Example("torchrl_ppo", "PPO on CartPole-v1", 475, 10),
    Example("torchrl_sac", "SAC on Pendulum-v1", -250, 5),
)


def train(example: Example, collector: str, seed: int):
    """The rows of one run's curve, and its score; in a process of its own, with one thread."""
    ours, theirs = IMPORTS.values()
    script = (ROOT / f"examples/{example.name}.py").read_text()
    changed = script.replace(f"{ours}  # {theirs}\n", f"{IMPORTS[collector]}\n")
    assert changed != script
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "script.py").write_text(changed)
        command = [sys.executable, "-W", "ignore", "script.py", "--seed", str(seed), "--curve", "curve.csv"]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        said = subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout
        with (Path(folder) / "curve.csv").open(newline="") as file:
            points = [(int(row["frames"]), float(row["return"])) for row in csv.DictReader(file)]
    return points, float(said.rsplit(SCORE, 1)[1])


def run(example: Example) -> bool:
    """Train with both collectors and all seeds, and keep the curves; whether ours reached the bar."""
    rows, scores = [], []
    for collector, seed in product(IMPORTS, SEEDS):
        points, score = train(example, collector, seed)
        print(f"{example.title}, {collector}'s Collector, seed {seed}: {score:.1f}", flush=True)
        rows += [(collector, seed, frames, f"{value:.2f}") for frames, value in points]
        scores.append((collector, seed, score))
    write(f"{example.name}.csv", ("collector", "seed", "frames", "return"), rows)
    write(f"{example.name}_scores.csv", ("collector", "seed", "return"), scores)
    return all(score >= example.bar for collector, _, score in scores if collector == "Swath")


def write(name: str, head, rows) -> None:
    """A CSV file in the folder of the curves."""
    with (FOLDER / name).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def read(name: str) -> list[dict[str, str]]:
    """The rows of such a file."""
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))


def draw(example: Example) -> None:
    """The picture of an example's curves."""
    scores = {(row["collector"], row["seed"]): float(row["return"]) for row in read(f"{example.name}_scores.csv")}
    figure = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for run_of, rows in groupby(read(f"{example.name}.csv"), lambda row: (row["collector"], row["seed"])):
        collector, seed = run_of
        frames, returns = np.array([(float(row["frames"]), float(row["return"])) for row in rows]).T
        means = np.convolve(returns, np.ones(example.smooth) / example.smooth, mode="valid")
        style = {"color": COLOURS[collector], "linestyle": "-" if seed == "0" else "--"}
        label = f"{collector}'s Collector, seed {seed}: {scores[run_of]:.0f} in the end"
        axes.plot(frames[example.smooth - 1 :], means, linewidth=1.8, label=label, **style)
    axes.axhline(example.bar, color="#b3541e", linewidth=1, linestyle=":", label=f"bar: {example.bar:g}")
    axes.set_title(f"{example.title}, examples/{example.name}.py", loc="left", weight="bold")
    axes.set_xlabel("frames")
    axes.set_ylabel(f"return per training episode (mean of {example.smooth} points)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(color="#e3e7eb")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(FOLDER / f"{example.name}.png")


def main() -> int:
    """Run and draw all examples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw what was kept, train nothing")
    drawn_only = parser.parse_args().draw
    FOLDER.mkdir(exist_ok=True)
    reached = True
    for example in EXAMPLES:
        reached = (drawn_only or run(example)) and reached
        draw(example)
    print("all bars reached" if reached else "a bar was missed")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
