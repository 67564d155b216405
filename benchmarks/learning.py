"""What PPO learns with its defaults: several seeds per env, 20 evaluation episodes each; every seed must reach the bar.

    python benchmarks/learning.py                                        # the four envs that have a bar, 3 seeds each
    python benchmarks/learning.py CartPole-v1 --seeds 1 2 3 4 5
    python benchmarks/learning.py Hopper-v5 --frames 300000 --bar 500

Policies are evaluated with their most probable actions, on episodes that training never saw.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace

import gymnasium
import torch

from figures import ended, verdict
from policies import quiet_threads
from swath import Collector, evaluate_policy
from swath.learn import PPO, default_config, make_policy


@dataclass(frozen=True)
class Task:
    """An env, the frames to learn it in, and the least mean return each seed must reach."""

    env: str
    frames: int
    bar: float


TASKS = {
    task.env: task
    for task in (
        Task("CartPole-v1", 100_000, 475),
        Task("Pendulum-v1", 100_000, -300),
        Task("InvertedPendulum-v5", 100_000, 900),
        Task("HalfCheetah-v5", 1_000_000, 1000),
    )
}
ENVS, BATCH, EPISODES = 8, 2048, 20


def train(task: Task, seed: int):
    """A policy, trained from scratch."""
    torch.manual_seed(seed)
    with gymnasium.make(task.env) as env:
        spaces = env.observation_space, env.action_space
    policy = make_policy(*spaces)
    config = replace(default_config(*spaces), total_frames=task.frames, seed=seed)
    learner = PPO(policy, config)
    with Collector(
        task.env, policy, frames_per_batch=BATCH, total_frames=task.frames, envs_per_worker=ENVS, seed=seed
    ) as collector:
        for batch in collector:
            learner.update(batch)
            collector.update_policy_weights_()
    return policy


def passes(task: Task, seed: int) -> bool:
    """Train, evaluate, print a line; whether the mean return reaches the bar."""
    began = time.perf_counter()
    policy = train(task, seed)
    seconds = time.perf_counter() - began
    mean, spread = evaluate_policy(policy, task.env, EPISODES, num_envs=EPISODES, seed=10_000 + seed)
    what, note = f"{task.env}, {task.frames:,} frames, seed {seed}", f"± {spread:.1f} over episodes; {seconds:.0f} s"
    return verdict(what, mean, ".1f", least=task.bar, note=note)


def tasks_of(arguments: argparse.Namespace) -> list[Task]:
    """What was asked for, with frames and bars of its own where they are given."""
    tasks = [TASKS.get(env, Task(env, 100_000, float("-inf"))) for env in arguments.envs or TASKS]
    changes = {"frames": arguments.frames, "bar": arguments.bar}
    return [replace(task, **{name: value for name, value in changes.items() if value is not None}) for task in tasks]


def main() -> int:
    """Print the table; 1 if a seed stays below its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", metavar="ENV", help=f"ids of envs (default: {', '.join(TASKS)})")
    parser.add_argument("--frames", type=int, help="frames per training")
    parser.add_argument("--bar", type=float, help="the mean return to reach")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    quiet_threads()
    return ended([passes(task, seed) for task in tasks_of(arguments) for seed in arguments.seeds])


if __name__ == "__main__":
    sys.exit(main())
