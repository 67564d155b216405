"""How quick an evaluation is, and how little it costs those who ask for it.

    python benchmarks/evaluator.py [--seconds 2] [--rounds 5] [--requests 100]

Ten CartPole episodes in ten envs, with Swath's `Evaluator` and TorchRL's, both on a thread, in turn; then how long
`trigger_eval` takes beyond a copy of the weights, and how long after the evaluation itself its result can be read; then
a thousand requests at once. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time

import torch
from torch import nn

from figures import claim, ended, verdict
from peers import TORCHRL, python_of
from rounds import Peer, Run, Target, interleave, reached, show, timed
from swath import Evaluator
from swath.evaluation.options import Place

EPISODES, ENVS, MAX_STEPS = 10, 10, 200
MANY, ENOUGH = 1000, 0.95
COPY_S, READ_S = 1e-3, 5e-3


class Upright(nn.Module):
    """Pushes to where the pole falls, and has weights to copy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(512, 512)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """0 or 1 per env."""
        return (observation[..., 2] + observation[..., 3] > 0).long()


def evaluator(place: Place, episodes: int, envs: int, **options: object) -> Evaluator:
    """Of CartPole, whose episodes are cut after so many steps."""
    return Evaluator(
        "CartPole-v1",
        policy_factory=Upright,
        num_trajectories=episodes,
        num_envs=envs,
        max_steps=MAX_STEPS,
        backend=place,
        **options,  # type: ignore[arg-type]
    )


def episodes_pass(seconds: float, rounds: int) -> bool:
    """Whether ours is so much quicker."""
    with evaluator("thread", EPISODES, ENVS) as ours:
        peer = Peer(python_of(TORCHRL), "peer_torchrl_cartpole.py", ENVS, EPISODES, MAX_STEPS)
        contenders: dict[str, Run] = {"Swath": timed(lambda: len([ours.evaluate()])), "TorchRL": peer}
        rates = interleave(contenders, rounds, seconds)
        peer.close()
    show(f"{EPISODES} episodes of CartPole in {ENVS} envs, on a thread", rates, "evaluations/s")
    return reached(rates, [Target("Swath", "TorchRL", 10.0)])


def latency_passes(place: Place, requests: int) -> bool:
    """Whether asking takes hardly more than a copy, and results are there at once."""
    policy, asking, reading = Upright(), list[float](), list[float]()
    with evaluator(place, 1, 1) as ours:
        ours.evaluate(policy)
        for _ in range(requests):
            began = time.perf_counter()
            copied = {name: value.clone() for name, value in policy.state_dict().items()}
            asked = time.perf_counter()
            ours.trigger_eval(policy)
            accepted = time.perf_counter()
            result = ours.wait()
            assert result is not None
            reading.append(time.perf_counter() - accepted - result["eval/duration_s"])
            asking.append((accepted - asked) - (asked - began))
            del copied
    return all(
        [
            within(f"{place}: asking, beyond a copy", asking, COPY_S),
            within(f"{place}: reading, beyond the evaluation", reading, READ_S),
        ]
    )


def within(what: str, seconds: list[float], most: float) -> bool:
    """Whether enough of these are no more; prints a line."""
    middle, high = statistics.median(seconds) * 1e3, sorted(seconds)[int(ENOUGH * len(seconds)) - 1] * 1e3
    return verdict(f"{what}, 95 % within", high, ".2f ms", most=most * 1e3, note=f"median {middle:.2f} ms")


def many_pass() -> bool:
    """Whether a thousand requests at once have their results in order, or the newest alone, in bounded memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with evaluator("thread", 1, 1, busy_policy="queue") as ours:
        began = time.perf_counter()
        for step in range(MANY):
            ours.trigger_eval(step=step)
        asked = time.perf_counter() - began
        steps = [result["eval/step"] for result in iter(ours.wait, None)]
    with evaluator("thread", 1, 1, busy_policy="latest") as ours:
        for step in range(MANY):
            ours.trigger_eval(step=step)
        latest = [result["eval/step"] for result in iter(ours.wait, None)]
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    passed = steps == list(range(MANY)) and latest[-1] == MANY - 1 and len(latest) <= MANY
    note = f"asked for in {asked:.2f} s; with 'latest' {len(latest)} of them; {more:.0f} MiB more"
    return claim(f"{MANY} requests at once: all in order", passed, note)


def main() -> int:
    """Print all; 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each contender, per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100, help="whose latency is measured, per backend")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    passed = [episodes_pass(asked.seconds, asked.rounds)]
    passed += [latency_passes("thread", asked.requests), latency_passes("process", asked.requests), many_pass()]
    return ended(passed)


if __name__ == "__main__":
    sys.exit(main())
