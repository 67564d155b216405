"""Train cars and traffic lights, two policies of one env, by PPO with a `WorkerSet`.

    python examples/traffic.py [--iterations 60] [--workers 2] [--out traffic.csv] [--picture traffic.png]

Prints, and writes as CSV, the mean return of a car and of a light per iteration; the picture needs `swath[plot]`.
"""

import argparse
import csv
from pathlib import Path

import torch
from traffic_grid import TrafficGrid

from swath import AlgorithmConfig, WorkerSet
from swath.rollout_workers import PPOTorchPolicy, collect_metrics


def policy_of(agent_id, *_, **__):
    return "car" if agent_id.startswith("car_") else "light"


def config_for(workers):
    return (
        AlgorithmConfig()
        .env_runners(num_env_runners=workers, num_envs_per_env_runner=2, rollout_fragment_length=100)
        .multi_agent(policies={"car", "light"}, policy_mapping_fn=policy_of)
        .training(gamma=0.9, lambda_=0.95, lr=5e-4, num_epochs=4, model={"fcnet_hiddens": [32, 32]})
        .debugging(seed=0)
    )


def learn(workers, batch, epochs):
    """Learn from the batch in this process, then send the weights to all workers."""
    for _ in range(epochs):
        workers.local_worker().learn_on_batch(batch)
    workers.sync_weights()


def draw(rows, path):
    """Draw the two curves over iterations."""
    from matplotlib.figure import Figure  # noqa: PLC0415  the rest of this script needs no plot

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, colour in (("car", "#0b6e4f"), ("light", "#b5651d")):
        axes.plot([row[name] for row in rows], color=colour, label=f"mean return of a {name}")
    axes.set_xlabel("iteration")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("traffic.csv"))
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small networks lose time with more
    workers = WorkerSet(
        env_creator=lambda _: TrafficGrid(num_cars=10, num_lights=2),
        default_policy_class=PPOTorchPolicy,
        config=config_for(arguments.workers),
        backend="process",
    )
    rows = []
    with workers:
        for iteration in range(arguments.iterations):
            batch = workers.sample()
            means = collect_metrics(workers)["policy_reward_mean"]
            rows.append({"iteration": iteration, "car": means["car"], "light": means["light"]})
            print(f"{iteration:3}  car {means['car']:6.2f}  light {means['light']:6.2f}", flush=True)
            learn(workers, batch, epochs=4)
    with arguments.out.open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=rows[0])
        table.writeheader()
        table.writerows(rows)
    if arguments.picture is not None:
        draw(rows, arguments.picture)


if __name__ == "__main__":
    main()
