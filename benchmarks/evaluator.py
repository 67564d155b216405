"""Measure the speed of an evaluation, and its cost for the caller.

    python benchmarks/evaluator.py [--quick]

Ten CartPole episodes in ten envs, with Swath's `Evaluator` and TorchRL's, both on a thread; how long `trigger_eval`
takes beyond a copy of the weights, and how long after the evaluation itself its result can be read. Ends with 1 if a
target is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from torch import nn

from policies import quiet_threads
from rounds import Peer, Target, compare, ended, parser, python_of, timed, verdict
from swath import Evaluator

EPISODES, ENVS, MAX_STEPS = 10, 10, 200
ENOUGH = 0.95
COPY_MS, READ_MS = 1.0, 5.0


class Upright(nn.Module):
    """Pushes towards the falling pole; has weights to copy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(512, 512)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return 0 or 1 per env."""
        return (observation[..., 2] + observation[..., 3] > 0).long()


def evaluator(place: Any, episodes: int, **options: Any) -> Evaluator:
    """Return an evaluator of CartPole with an env per episode and a limit of steps."""
    settings = {"num_trajectories": episodes, "num_envs": episodes, "max_steps": MAX_STEPS, "backend": place}
    return Evaluator("CartPole-v1", policy_factory=Upright, **settings, **options)


def episodes_pass(rounds: int, seconds: float) -> bool:
    """Compare the speeds, and return whether the target is reached."""
    peer = Peer(python_of("torchrl"), "peer_torchrl.py", "evaluate", ENVS, EPISODES, MAX_STEPS)
    with evaluator("thread", EPISODES) as ours:
        contenders = {"Swath": timed(lambda: len([ours.evaluate()])), "TorchRL": peer}
        title, target = f"{EPISODES} episodes of CartPole in {ENVS} envs, on a thread", Target("Swath", "TorchRL", 10)
        reached = compare(title, contenders, [target], rounds, seconds, "evaluations/s")
    peer.close()
    return reached


def latency_passes(place: str, requests: int) -> bool:
    """Measure request and result times, and return whether the targets are reached."""
    policy, asking, reading = Upright(), list[float](), list[float]()
    with evaluator(place, 1) as ours:
        ours.evaluate(policy)
        for _ in range(requests):
            began = time.perf_counter()
            copied = {name: value.clone() for name, value in policy.state_dict().items()}
            requested = time.perf_counter()
            ours.trigger_eval(policy)
            accepted = time.perf_counter()
            result = ours.wait()
            assert result is not None
            reading.append(time.perf_counter() - accepted - result["eval/duration_s"])
            asking.append((accepted - requested) - (requested - began))
            del copied
    asked_in_time = within(f"{place}: asking, beyond a copy", asking, COPY_MS)
    return within(f"{place}: reading, beyond the evaluation", reading, READ_MS) and asked_in_time


def within(title: str, seconds: list[float], maximum: float) -> bool:
    """Print the 95th percentile of the times, and return whether it is within its limit."""
    middle, high = statistics.median(seconds) * 1e3, sorted(seconds)[int(ENOUGH * len(seconds)) - 1] * 1e3
    return verdict(f"{title}, 95 % within", high, ".2f ms", maximum=maximum, note=f"median {middle:.2f} ms")


def main() -> int:
    """Print all; 1 if a target was missed."""
    quick = parser(__doc__).parse_args().quick
    quiet_threads()
    passed = [episodes_pass(3, 0.5) if quick else episodes_pass(5, 2.0)]
    passed += [latency_passes(place, 20 if quick else 100) for place in ("thread", "process")]
    return ended(passed)


if __name__ == "__main__":
    sys.exit(main())
