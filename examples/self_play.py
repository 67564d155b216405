"""Train a policy to play Nim against its own earlier versions, which are added during the run.

    python examples/self_play.py [--iterations 60] [--workers 2] [--clearly 0.3]

`main` plays one side of each game, a frozen version of it the other. When its mean result, from -1 to 1, is clearly
above 0, a copy joins the versions to play against. At the end its moves are compared with the unbeatable rule.
"""

import argparse
from functools import partial

import numpy as np
import torch
from nim import Nim

from swath import AlgorithmConfig, WorkerSet
from swath.rollout_workers import PPOTorchPolicy, RandomPolicy, collect_metrics

STONES, MAIN = 12, "main"
MAX_VERSIONS = 6


def policy_of(versions, agent_id, episode, **_):
    """Let `main` play first in games of even number and second in odd ones; a version plays the other side."""
    main = ("first", "second")[episode.episode_id % 2] if episode is not None else "first"
    return MAIN if agent_id == main else versions[episode.episode_id // 2 % len(versions)]


def config_for(workers):
    return (
        AlgorithmConfig()
        .env_runners(num_env_runners=workers, num_envs_per_env_runner=8, rollout_fragment_length=50)
        .multi_agent(
            policies={MAIN: (PPOTorchPolicy, None, None, {}), "random": (RandomPolicy, None, None, {})},
            policy_mapping_fn=partial(policy_of, ["random"]),
            policies_to_train=[MAIN],
        )
        .training(gamma=1.0, lr=2e-3, entropy_coeff=0.01, model={"fcnet_hiddens": [64]})
        .debugging(seed=0)
    )


def main_score(metrics):
    """Return the mean result of `main` in the games of an iteration, from -1 (all lost) to 1."""
    return metrics["policy_reward_mean"][MAIN]


def mistakes(policy):
    """Count the winnable positions, and those in which the policy differs from the unbeatable rule."""
    winning = [stones for stones in range(1, STONES + 1) if stones % 4]
    actions, _, _ = policy.compute_actions(np.eye(STONES + 1, dtype=np.float32)[winning], explore=False)
    return sum(int(action) + 1 != stones % 4 for action, stones in zip(actions, winning, strict=True)), len(winning)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clearly", type=float, default=0.3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small networks lose time with more
    versions = ["random"]
    with WorkerSet(
        env_creator=lambda _: Nim(STONES), config=config_for(arguments.workers), backend="process"
    ) as workers:
        local = workers.local_worker()
        for iteration in range(arguments.iterations):
            batch = workers.sample()
            score = main_score(collect_metrics(workers))
            for _ in range(4):
                local.learn_on_batch(batch)
            workers.sync_weights()
            print(f"{iteration:3}  {score:5.2f} against {len(versions)} versions", flush=True)
            if score > arguments.clearly and len(versions) < MAX_VERSIONS:
                versions = [*versions, f"{MAIN}_{iteration}"]
                workers.add_policy(
                    versions[-1],
                    PPOTorchPolicy,
                    policy_state=local.get_policy(MAIN).get_state(),
                    policy_mapping_fn=partial(policy_of, versions),
                    policies_to_train=[MAIN],
                )
        wrong, positions = mistakes(local.get_policy(MAIN))
        print(f"mistakes: {wrong} of {positions} positions that can be won")


if __name__ == "__main__":
    main()
