"""Train PPO with `RayCollector`: actors of a Ray cluster collect, and another one evaluates during the training.

python examples/ray_ppo.py [--env CartPole-v1] [--frames 100000] [--workers 2]      # needs swath[ray]

    workers ──batch, a share of each──▶ PPO ──weights, every batch──▶ workers
                                         └──weights, every 10──▶ evaluator ──result──▶ a line

Joins the cluster that is running, or starts one on this machine: the same script runs on a laptop and, by
`ray job submit`, on a cluster.
"""

import argparse

import gymnasium
import torch

from swath import EvalResult, Evaluator, RayCollector
from swath.learn import PPO, default_config, make_policy

ENVS, SHARE, EVERY = 8, 1024, 10


def show(result: EvalResult) -> None:
    """Print a result as one line."""
    low, high = result["eval/reward_ci_low"], result["eval/reward_ci_high"]
    print(f"{result.step:>9,} frames   return {result['eval/reward']:6.1f}   [{low:.1f}, {high:.1f}]", flush=True)


def main() -> None:
    """Train, and print evaluations when they are done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small networks lose time with more
    env = gymnasium.make(arguments.env)
    spaces = env.observation_space, env.action_space
    actor = make_policy(*spaces)
    learner = PPO(actor, default_config(*spaces))
    with (
        RayCollector(
            arguments.env,
            actor,
            sync=True,
            num_collectors=arguments.workers,
            envs_per_worker=ENVS,
            frames_per_batch=SHARE * arguments.workers,
            total_frames=arguments.frames,
            seed=0,
        ) as collector,
        Evaluator(
            arguments.env,
            policy_factory=lambda: make_policy(*spaces),
            backend="ray",
            num_gpus=0,
            ray_kwargs={"num_cpus": 0},  # starts even if the workers use every CPU
            num_trajectories=20,
            num_envs=ENVS,
            busy_policy="latest",
        ) as evaluator,
    ):
        for number, batch in enumerate(collector, start=1):
            learner.update(batch)
            collector.update_policy_weights_(actor)  # copies the weights; workers have them before the next batch
            if number % EVERY == 0:
                evaluator.trigger_eval(actor, step=learner.frames)
            if (result := evaluator.poll()) is not None:
                show(result)
        if number % EVERY:
            evaluator.trigger_eval(actor, step=learner.frames)
        while (result := evaluator.wait()) is not None:
            show(result)
        print(collector)


if __name__ == "__main__":
    main()
