"""Train PPO on a Gymnasium env while an evaluator plays episodes in another process.

python examples/ppo_with_evaluator.py [--env CartPole-v1] [--frames 100000]

    collector ──batch──▶ PPO ──weights, every 10 batches──▶ evaluator ──result──▶ a line, best/best.safetensors
"""

import argparse

import gymnasium
import torch

from swath import Collector, EvalResult, Evaluator
from swath.learn import PPO, default_config, make_policy

ENVS, BATCH, EVERY = 8, 1024, 10


def show(result: EvalResult) -> None:
    """Print a result as one line."""
    low, high = result["eval/reward_ci_low"], result["eval/reward_ci_high"]
    print(f"{result.step:>9,} frames   return {result['eval/reward']:6.1f}   [{low:.1f}, {high:.1f}]", flush=True)


def main() -> None:
    """Train, and print evaluations when they are done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--frames", type=int, default=100_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small networks lose time with more
    env = gymnasium.make(arguments.env)
    spaces = env.observation_space, env.action_space
    actor = make_policy(*spaces)
    learner = PPO(actor, default_config(*spaces))
    with (
        Collector(
            arguments.env, actor, envs_per_worker=ENVS, frames_per_batch=BATCH, total_frames=arguments.frames, seed=0
        ) as collector,
        Evaluator(
            arguments.env,
            policy_factory=lambda: make_policy(*spaces),
            backend="process",
            num_trajectories=20,
            num_envs=ENVS,
            busy_policy="latest",
            keep_best="best",
        ) as evaluator,
    ):
        for number, batch in enumerate(collector):
            learner.update(batch)
            collector.update_policy_weights_()
            if number % EVERY == 0:
                evaluator.trigger_eval(actor, step=(number + 1) * BATCH)  # copies the weights and goes on
            if (result := evaluator.poll()) is not None:
                show(result)
        while (result := evaluator.wait()) is not None:
            show(result)
        show(evaluator.evaluate(actor, step=(number + 1) * BATCH))


if __name__ == "__main__":
    main()
