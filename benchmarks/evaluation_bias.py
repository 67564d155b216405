"""Whether evaluations with many envs at once favour short episodes: Swath's, TorchRL's and RLlib's in one run.

    python benchmarks/evaluation_bias.py [--evaluations 40] [--episodes 20]

Episodes have 3 or 41 steps with equal chance and a reward of 1 a step: the true mean return is 22. Whoever takes the
episodes that end first counts more short ones the more envs run at once. Ends with 1 if ours is more than three
standard errors off, or depends on the number of envs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from math import sqrt

import torch

from figures import claim, ended, table, verdict
from peers import RLLIB, TORCHRL, python_of
from rounds import Peer
from swath import Evaluator
from uneven import TRUE_MEAN, Uneven

ENVS = (1, 8, 32)
OURS, MOST_ERRORS = "Swath", 3.0
PEERS = {
    "TorchRL": (TORCHRL, "peer_torchrl_evaluator.py"),
    "RLlib": (RLLIB, "peer_rllib_episodes.py"),
}
Evaluate = Callable[[float], float]


def left(observation: torch.Tensor) -> torch.Tensor:
    """The same action always."""
    return torch.zeros(observation.shape[:-1], dtype=torch.int64)


def ours(envs: int, episodes: int, seed: float) -> float:
    """Mean return of one evaluation; every seed has episodes of its own."""
    with Evaluator(Uneven, left, num_trajectories=episodes, num_envs=envs, seed=int(seed)) as evaluator:
        return float(evaluator.evaluate()["eval/reward"])


def means_of(contenders: dict[str, Evaluate], evaluations: int) -> dict[str, list[float]]:
    """Mean returns of each contender, one per evaluation, in turn."""
    means: dict[str, list[float]] = {name: [] for name in contenders}
    for seed in range(evaluations):
        for name, evaluate in contenders.items():
            means[name].append(evaluate(seed))
    return means


def spread(means: list[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    return statistics.fmean(means), statistics.stdev(means) / sqrt(len(means))


def measured(envs: int, episodes: int, evaluations: int) -> dict[str, list[float]]:
    """Mean returns of all contenders with so many envs."""
    peers = {name: Peer(python_of(library), script, envs, episodes) for name, (library, script) in PEERS.items()}
    contenders: dict[str, Evaluate] = {OURS: partial(ours, envs, episodes), **peers}
    means = means_of(contenders, evaluations)
    for peer in peers.values():
        peer.close()
    return means


def main() -> int:
    """Print the table; 1 if ours is biased."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=40, help="of each contender, per line")
    parser.add_argument("--episodes", type=int, default=20, help="of an evaluation")
    asked = parser.parse_args()
    found = [measured(envs, asked.episodes, asked.evaluations) for envs in ENVS]
    spreads = {name: [spread(means[name]) for means in found] for name in found[0]}
    at_once = dict.fromkeys((f"{envs} at once" for envs in ENVS), ".2f")
    title = (
        f"Mean return of {asked.evaluations} evaluations of {asked.episodes} episodes (true: {TRUE_MEAN:g}), by envs"
    )
    table(title, at_once, {name: [mean for mean, _ in column] for name, column in spreads.items()})
    table("Their standard errors", at_once, {name: [error for _, error in column] for name, column in spreads.items()})
    rows = [means[OURS] for means in found]
    mean, error = spread(rows[0])
    off = verdict("ours, standard errors off", abs(mean - TRUE_MEAN) / error, ".1f", most=MOST_ERRORS)
    return ended([off, claim("ours, the same for any number of envs", all(row == rows[0] for row in rows))])


if __name__ == "__main__":
    sys.exit(main())
