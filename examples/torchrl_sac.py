"""Solve Pendulum-v1 by SAC, with TorchRL's env, modules, loss and replay buffer; only the collector is Swath's.

python examples/torchrl_sac.py [--frames 12000] [--seed 0] [--curve sac.csv]
"""

import argparse
import csv
from pathlib import Path

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import ExplorationType, GymEnv, RewardSum, SerialEnv, TransformedEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

from swath import Collector  # from torchrl.collectors import Collector

BATCH, SAMPLE, RANDOM = 16, 128, 1000


def make_env() -> TransformedEnv:
    """Return a pendulum that tracks the return of its episode."""
    return TransformedEnv(GymEnv("Pendulum-v1"), RewardSum())


def make_networks() -> tuple[ProbabilisticActor, ValueOperator]:
    """Return actor and Q-network."""
    spec = make_env().action_spec
    actor = nn.Sequential(MLP(in_features=3, out_features=2, num_cells=[128, 128]), NormalParamExtractor())
    policy = ProbabilisticActor(
        TensorDictModule(actor, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=False,
    )
    q = ValueOperator(MLP(in_features=4, out_features=1, num_cells=[128, 128]), in_keys=["observation", "action"])
    return policy, q


def evaluate(policy: ProbabilisticActor, episodes: int = 20) -> float:
    """Return the mean return of as many episodes, with the most probable actions."""
    env = SerialEnv(episodes, lambda: GymEnv("Pendulum-v1"))
    env.set_seed(1000)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        data = env.rollout(200, policy, break_when_any_done=False)
    env.close()
    return data["next", "reward"].sum(-2).mean().item()


def main() -> float:
    """Train, print a line per ten episodes, and the score at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--curve", type=Path, help="a CSV file: frames, return of the episode that ended then")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small networks lose time with more
    torch.manual_seed(arguments.seed)
    policy, q = make_networks()
    loss = SACLoss(policy, q, num_qvalue_nets=2, action_spec=make_env().action_spec)
    loss.make_value_estimator(gamma=0.98)
    target = SoftUpdate(loss, tau=0.005)
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3)
    replay = ReplayBuffer(storage=LazyTensorStorage(arguments.frames), batch_size=SAMPLE)
    collector = Collector(
        make_env(), policy, frames_per_batch=BATCH, total_frames=arguments.frames, init_random_frames=RANDOM
    )
    collector.set_seed(arguments.seed)
    curve, frames = [], 0
    for batch in collector:
        frames += batch.numel()
        replay.extend(batch)
        for _ in range(BATCH if frames > RANDOM else 0):
            losses = loss(replay.sample())
            total = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
            target.step()
        collector.update_policy_weights_()
        for value in batch["next", "episode_reward"][batch["next", "done"]].tolist():
            curve.append((frames, value))
            if len(curve) % 10 == 0:
                print(f"{frames:>9,} frames   return {value:8.1f}", flush=True)
    collector.shutdown()
    if arguments.curve:
        with arguments.curve.open("w", newline="") as file:
            csv.writer(file).writerows([("frames", "return"), *curve])
    score = evaluate(policy)
    print(f"mean return of 20 episodes: {score:.1f}")
    return score


if __name__ == "__main__":
    main()
