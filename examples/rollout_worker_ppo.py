"""Solve CartPole-v1 by PPO, with one `RolloutWorker` that samples and learns.

    python examples/rollout_worker_ppo.py [--frames 50000] [--seeds 0] [--out ppo.csv] [--picture ppo.png]

Writes as CSV the mean return of the last 20 episodes; at the end of each run it plays 20 others with the most probable
actions, from the same starts for every seed, and prints their mean return. The picture needs `swath[plot]`.
"""

import argparse
import csv
from pathlib import Path

import gymnasium
import numpy as np
import torch

from swath import AlgorithmConfig, RolloutWorker, evaluate_policy
from swath.rollout_workers import PPOTorchPolicy

ENV, SOLVED = "CartPole-v1", 475
ENVS, STEPS = 8, 32
EPOCHS, MINIBATCH = 10, 64


def worker_for(seed, frames):
    """Build a worker whose learning rate falls to 0 over the run, so that the policy stays good."""
    config = (
        AlgorithmConfig()
        .env_runners(num_envs_per_env_runner=ENVS, rollout_fragment_length=STEPS)
        .training(gamma=0.98, lambda_=0.8, lr_schedule=[[0, 1e-3], [frames, 0.0]], grad_clip=0.5)
        .training(clip_param=0.2, use_kl_loss=False, vf_clip_param=1e4, vf_loss_coeff=0.5)
        .training(model={"fcnet_hiddens": [64, 64]})
        .debugging(seed=seed)
    )
    return RolloutWorker(env_creator=lambda _: gymnasium.make(ENV), default_policy_class=PPOTorchPolicy, config=config)


def train(seed, frames):
    """Train once, and return the rows of the curve and the score."""
    rows, recent = [], []
    with worker_for(seed, frames) as worker:
        for sampled in range(ENVS * STEPS, frames + 1, ENVS * STEPS):
            worker.sample_and_learn(ENVS * STEPS, EPOCHS, MINIBATCH, ["advantages"])
            worker.set_global_vars({"timestep": sampled})
            recent = [*recent, *(episode.episode_reward for episode in worker.get_metrics())][-20:]
            rows.append({"seed": seed, "frames": sampled, "return": round(float(np.mean(recent or [0])), 2)})
        policy = worker.get_policy()
        score, _ = evaluate_policy(
            lambda observation: policy.compute_actions(observation, explore=False)[0],
            ENV,
            n_eval_episodes=20,
            num_envs=20,
        )
    return rows, score


def draw(rows, scores, path):
    """Draw a line per seed."""
    from matplotlib.figure import Figure  # noqa: PLC0415  the rest of this script needs no plot

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for seed, score in scores.items():
        line = [(row["frames"], row["return"]) for row in rows if row["seed"] == seed]
        axes.plot(*zip(*line, strict=True), linewidth=1.2, label=f"seed {seed}: {score:.0f} at the end, greedily")
    axes.axhline(SOLVED, color="#b3541e", linewidth=1, linestyle=":", label=f"solved: {SOLVED}")
    axes.set_xlabel("frames")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylabel("return, mean of 20 episodes")
    axes.set_ylim(0, 510)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("rollout_worker_ppo.csv"))
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small networks lose time with more
    rows, scores = [], {}
    for seed in arguments.seeds:
        curve, scores[seed] = train(seed, arguments.frames)
        rows += curve
        print(f"seed {seed}: mean return of 20 episodes {scores[seed]:.1f}", flush=True)
    with arguments.out.open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    if arguments.picture is not None:
        draw(rows, scores, arguments.picture)


if __name__ == "__main__":
    main()
