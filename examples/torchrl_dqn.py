"""Solve CartPole-v1 by double DQN: Swath collects into TorchRL's replay buffer, the loss is plain torch.

python examples/torchrl_dqn.py [--frames 30000] [--seed 0]
"""

import argparse
from copy import deepcopy

import torch
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer

from swath import Collector, evaluate_policy

ENVS, BATCH, SAMPLE, UPDATES, RANDOM = 8, 64, 128, 16, 1000
GAMMA, TAU = 0.99, 0.01


class EpsilonGreedy(nn.Module):
    """Picks the action of highest value, or with probability `epsilon` any; a buffer, it travels with the weights."""

    epsilon: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
        self.register_buffer("epsilon", torch.tensor(1.0))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return an action per row."""
        best = self.values(observation).argmax(-1)
        return torch.where(torch.rand(best.shape) < self.epsilon, torch.randint(2, best.shape), best)


def loss_of(values: nn.Module, target: nn.Module, rows: object) -> torch.Tensor:
    """Return the loss of rows `[n]`; it reads `terminated`, not `done`: a truncated episode would have gone on."""
    chosen = values(rows["observation"]).gather(-1, rows["action"].unsqueeze(-1))
    with torch.no_grad():
        best = values(rows["next", "observation"]).argmax(-1, keepdim=True)
        future = target(rows["next", "observation"]).gather(-1, best)
        expected = rows["next", "reward"] + GAMMA * future * ~rows["next", "terminated"]
    return nn.functional.smooth_l1_loss(chosen, expected)


def main() -> float:
    """Train, print a line now and then, and the score at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small networks lose time with more
    torch.manual_seed(arguments.seed)
    policy = EpsilonGreedy()
    target = deepcopy(policy.values)
    optimiser = torch.optim.Adam(policy.values.parameters(), lr=5e-4)
    replay = ReplayBuffer(storage=LazyTensorStorage(arguments.frames), batch_size=SAMPLE)
    with Collector(
        "CartPole-v1",
        policy,
        envs_per_worker=ENVS,
        frames_per_batch=BATCH,
        total_frames=arguments.frames,
        replay_buffer=replay,
        seed=arguments.seed,
    ) as collector:
        for number, _ in enumerate(collector):  # the batch is in the buffer
            frames = len(replay)
            for _ in range(UPDATES if frames > RANDOM else 0):
                optimiser.zero_grad()
                loss_of(policy.values, target, replay.sample()).backward()
                optimiser.step()
                for slow, fast in zip(target.parameters(), policy.values.parameters(), strict=True):
                    slow.data.lerp_(fast.data, TAU)
            policy.epsilon.fill_(max(0.05, 1 - 4 * frames / arguments.frames))
            collector.update_policy_weights_()
            if number % 50 == 49:
                mean = collector.stats().get("episode_return", float("nan"))
                print(f"{frames:>9,} frames   return {mean:6.1f}", flush=True)
    score, spread = evaluate_policy(
        lambda observation: policy.values(observation).argmax(-1), "CartPole-v1", n_eval_episodes=20
    )
    print(f"mean return of 20 episodes: {score:.1f} ± {spread:.1f}")
    return score


if __name__ == "__main__":
    main()
