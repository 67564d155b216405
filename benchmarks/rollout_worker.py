"""`RolloutWorker.sample()` with values and advantages, against `Collector` with the same network, which has only acted.

    python benchmarks/rollout_worker.py [--quick]

CartPole-v1, the default network of 4-256-256-2 with a value network beside it, 200 steps of each sub-env a batch, one
torch thread; contenders take turns (see rounds.py). Ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse

import gymnasium

from policies import quiet_threads
from rounds import CPU, Run, Target, ended, interleave, reached, show, timed
from swath import AlgorithmConfig, Collector, RolloutWorker
from swath.learn import heads, networks
from swath.learn.policy import NetworkPolicy
from swath.rollout_workers import DefaultCallbacks, PPOTorchPolicy

STEPS = 200
WORKER, GENERAL, COLLECTOR = "RolloutWorker, PPO", "the same, a step callback", "Collector, same actor"


class AtEachStep(DefaultCallbacks):
    """Takes the general path."""

    def on_episode_step(self, **kwargs) -> None:
        """Nothing."""


def worker(envs: int, **settings) -> Run:
    """Rows of batches that are complete with advantages."""
    config = AlgorithmConfig().env_runners(num_envs_per_env_runner=envs, rollout_fragment_length=STEPS)
    sampling = RolloutWorker(
        env_creator=lambda _: gymnasium.make("CartPole-v1"),
        default_policy_class=PPOTorchPolicy,
        config=config.update_from_dict(settings),
    )

    def draw() -> int:
        sampling.get_metrics()
        return len(sampling.sample())

    return timed(draw)


def collector(envs: int) -> Run:
    """Frames of batches without values."""
    actor = NetworkPolicy(networks.MLP((4, 256, 256, 2)), heads.Categorical(2))
    batches = iter(Collector("CartPole-v1", actor, envs_per_worker=envs, frames_per_batch=envs * STEPS))
    return timed(lambda: next(batches).numel())


def main() -> int:
    """Measure at 8 and 16 sub-envs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few short rounds: a look, not a measurement")
    rounds, seconds = (5, 0.2) if parser.parse_args().quick else (31, 0.3)
    quiet_threads()
    print(f"one torch thread, {rounds} rounds, {'CPU' if CPU else 'wall'} seconds")
    passed = []
    for envs in (8, 16):
        contenders = {
            WORKER: worker(envs),
            GENERAL: worker(envs, callbacks_class=AtEachStep),
            COLLECTOR: collector(envs),
        }
        rates = interleave(contenders, rounds, seconds)
        show(f"CartPole-v1, {envs} sub-envs, {STEPS} steps each a batch", rates, "frames/s")
        passed.append(reached(rates, [Target(WORKER, COLLECTOR, 0.5)]))
    return ended(passed)


if __name__ == "__main__":
    raise SystemExit(main())
