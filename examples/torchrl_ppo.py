"""Solve CartPole-v1 by PPO, with TorchRL's envs, modules, loss and advantages; only the collector is Swath's.

python examples/torchrl_ppo.py [--frames 100000] [--seed 0] [--curve ppo.csv]
"""

import argparse
import csv
from pathlib import Path

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.envs import Compose, ExplorationType, GymEnv, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from swath import Collector  # from torchrl.collectors import Collector

ENVS, BATCH, EPOCHS = 8, 256, 20
RATE, CLIP = 1e-3, 0.2


def make_env(envs: int = ENVS) -> TransformedEnv:
    """Return several CartPoles stepped together, with the returns of their episodes."""
    cartpoles = SerialEnv(envs, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    return TransformedEnv(cartpoles, Compose(RewardSum(), StepCounter()))


def make_networks() -> tuple[ProbabilisticActor, ValueOperator]:
    """Return actor and critic, 4-64-64 and their heads."""
    actor = MLP(in_features=4, out_features=2, num_cells=[64, 64], activation_class=nn.Tanh)
    critic = MLP(in_features=4, out_features=1, num_cells=[64, 64], activation_class=nn.Tanh)
    policy = ProbabilisticActor(
        TensorDictModule(actor, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    return policy, ValueOperator(critic, in_keys=["observation"])


def evaluate(policy: ProbabilisticActor, envs: int = 20) -> float:
    """Return the mean return of as many episodes, with the most probable actions."""
    env = make_env(envs)
    env.set_seed(1000)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        data = env.rollout(500, policy, break_when_any_done=False)
    env.close()
    returns, ended = data["next", "episode_reward"], data["next", "done"]
    return torch.stack([r[e][0] for r, e in zip(returns, ended, strict=True)]).mean().item()


def main() -> float:
    """Train, print a line per forty batches, and the score at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--curve", type=Path, help="a CSV file: frames, mean return of the batch's episodes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small networks lose time with more
    torch.manual_seed(arguments.seed)
    policy, value = make_networks()
    advantages = GAE(gamma=0.98, lmbda=0.8, value_network=value)
    loss = ClipPPOLoss(policy, value, clip_epsilon=CLIP, entropy_bonus=False, normalize_advantage=True)
    optimiser = torch.optim.Adam(loss.parameters(), lr=RATE)
    collector = Collector(make_env(), policy, frames_per_batch=BATCH, total_frames=arguments.frames)
    collector.set_seed(arguments.seed)
    curve, frames = [], 0
    for batch in collector:
        frames += batch.numel()
        remaining = max(1 - frames / arguments.frames, 0.01)
        optimiser.param_groups[0]["lr"] = RATE * remaining
        loss.clip_epsilon.fill_(CLIP * remaining)
        with torch.no_grad():
            advantages(batch)
        rows = batch.reshape(-1)
        for _ in range(EPOCHS):
            losses = loss(rows)
            total = losses["loss_objective"] + losses["loss_critic"]
            optimiser.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            optimiser.step()
        collector.update_policy_weights_()
        returns = batch["next", "episode_reward"][batch["next", "done"]]
        if returns.numel():
            curve.append((frames, returns.mean().item()))
        if frames // BATCH % 40 == 0 and curve:
            print(f"{frames:>9,} frames   return {curve[-1][1]:6.1f}", flush=True)
    collector.shutdown()
    if arguments.curve:
        with arguments.curve.open("w", newline="") as file:
            csv.writer(file).writerows([("frames", "return"), *curve])
    score = evaluate(policy)
    print(f"mean return of 20 episodes: {score:.1f}")
    return score


if __name__ == "__main__":
    main()
