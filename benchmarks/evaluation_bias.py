"""Check whether evaluations with many envs favour short episodes: Swath's, TorchRL's and RLlib's in one run.

    python benchmarks/evaluation_bias.py [--quick]

Episodes have 3 or 41 steps with equal chance and a reward of 1 a step: the true mean return is 22. Taking the
episodes that end first counts more short ones the more envs run at once. Ends with 1 if ours is more than three
standard errors off, or depends on the number of envs.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from math import sqrt

import torch

from peer_envs import TRUE_MEAN, Uneven
from rounds import Peer, claim, ended, parser, python_of, table, verdict
from swath import Evaluator

ENVS, EPISODES = (1, 8, 32), 20
OURS, MOST_ERRORS = "Swath", 3.0


def left(observation: torch.Tensor) -> torch.Tensor:
    """Return the same action for all envs."""
    return torch.zeros(observation.shape[:-1], dtype=torch.int64)


def ours(envs: int, seed: float) -> float:
    """Return the mean return of one evaluation; different seeds play different episodes."""
    with Evaluator(Uneven, left, num_trajectories=EPISODES, num_envs=envs, seed=int(seed)) as evaluator:
        return float(evaluator.evaluate()["eval/reward"])


def means(envs: int, evaluations: int) -> dict[str, list[float]]:
    """Return the mean returns of each contender with so many envs, one per evaluation, in turn."""
    peers = {
        "TorchRL": Peer(python_of("torchrl"), "peer_torchrl.py", "uneven", envs, EPISODES),
        "RLlib": Peer(python_of("rllib"), "peer_rllib.py", "uneven", envs, EPISODES),
    }
    contenders: dict[str, Callable[[float], float]] = {OURS: partial(ours, envs), **peers}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for seed in range(evaluations):
        for name, evaluate in contenders.items():
            found[name].append(evaluate(seed))
    for peer in peers.values():
        peer.close()
    return found


def main() -> int:
    """Print the table; 1 if ours is biased."""
    evaluations = 10 if parser(__doc__).parse_args().quick else 40
    by_envs = [means(envs, evaluations) for envs in ENVS]
    mean = {name: [statistics.fmean(returns[name]) for returns in by_envs] for name in by_envs[0]}
    error = {name: [statistics.stdev(returns[name]) / sqrt(evaluations) for returns in by_envs] for name in by_envs[0]}
    columns = dict.fromkeys((f"{envs} at once" for envs in ENVS), ".2f")
    table(
        f"Mean return of {evaluations} evaluations of {EPISODES} episodes (true: {TRUE_MEAN:g}), by envs", columns, mean
    )
    table("Their standard errors", columns, error)
    errors_off = abs(mean[OURS][0] - TRUE_MEAN) / error[OURS][0]
    same = all(returns[OURS] == by_envs[0][OURS] for returns in by_envs)
    off = verdict("ours, standard errors off", errors_off, ".1f", maximum=MOST_ERRORS)
    return ended([off, claim("ours, the same for any number of envs", same)])


if __name__ == "__main__":
    sys.exit(main())
