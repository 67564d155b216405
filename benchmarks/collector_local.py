"""`Collector` in this process against the loop a good user writes by hand, and Stable-Baselines3 for the reader.

    python benchmarks/collector_local.py [--quick]

Frames per second with one torch thread; contenders take turns (see rounds.py), and each ratio is the median over the
rounds. Policies sample actions and give log-probabilities. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import envpool
import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from by_hand import ByHand
from figures import ended
from peers import SB3, python_of
from policies import Sampler, cnn, lean_actor, mlp, quiet_threads, tensordict_actor
from pong import pong
from rounds import CPU, Peer, Run, Target, interleave, reached, show, timed
from swath import Collector

BY_HAND, SAME = "loop by hand", "Collector, same policy"
LEAN, TENSORDICT, PEER = "Collector, our actor head", "Collector, tensordict policy", "Stable-Baselines3"
SAME_POLICY_TARGETS = {1: 1.15, 8: 1.15, 16: 1.15, 64: 1.15}
VECTORS = (64, 256, 1024)


@dataclass(frozen=True)
class Setting:
    """Contenders that are compared, and what some of them must reach as a multiple of the loop by hand."""

    title: str
    contenders: Mapping[str, Run]
    targets: Mapping[str, float]


def collecting(collector: Collector) -> Run:
    """Draw batches; frames are the valid ones."""
    batches = iter(collector)

    def draw() -> int:
        batch = next(batches)
        mask = batch["collector"].get("mask", None)
        return batch.numel() if mask is None else int(mask.sum())

    return timed(draw)


def cartpoles(envs: int) -> SyncVectorEnv:
    """What a loop by hand steps; it keeps observations itself, so that it needs no copies."""
    makers = [lambda: gymnasium.make("CartPole-v1")] * envs
    return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)


@contextmanager
def cartpole(envs: int) -> Iterator[Setting]:
    """Plain CartPole-v1 envs, in one list or in gymnasium's `SyncVectorEnv`."""
    steps, net = max(128, 2048 // envs), mlp()
    policies: dict[str, object] = {SAME: Sampler(net)}
    targets = {SAME: SAME_POLICY_TARGETS[envs]}
    if envs in (8, 16):
        policies |= {LEAN: lean_actor(), TENSORDICT: tensordict_actor(net)}
        targets |= {LEAN: 1.3, TENSORDICT: 0.6}
    with ExitStack() as stack:
        contenders = {BY_HAND: timed(ByHand(cartpoles(envs), policies[SAME], steps).frames)}
        for name, policy in policies.items():
            collector = Collector("CartPole-v1", policy, envs_per_worker=envs, frames_per_batch=envs * steps)
            contenders[name] = collecting(stack.enter_context(collector))
        if envs in (8, 16):
            contenders[PEER] = peer = Peer(python_of(SB3), "peer_sb3.py", envs, steps)
            stack.callback(peer.close)
        title = f"CartPole-v1, {envs} env{'s' if envs > 1 else ''}, MLP 4-64-64-2, {steps} steps a batch"
        yield Setting(title, contenders, targets)


@contextmanager
def vectors(make: Callable[[], gymnasium.vector.VectorEnv], policy, steps: int) -> Iterator[dict[str, Run]]:
    """One vector env, stepped as it is by both."""
    by_hand = ByHand(make(), policy, steps)
    with Collector(make, policy, frames_per_batch=steps * by_hand.envs.num_envs) as collector:
        yield {BY_HAND: timed(by_hand.frames), SAME: collecting(collector)}


@contextmanager
def native(envs: int) -> Iterator[Setting]:
    """Gymnasium's CartPole written with arrays."""
    make = partial(gymnasium.make_vec, "CartPole-v1", num_envs=envs, vectorization_mode="vector_entry_point")
    with vectors(make, Sampler(mlp()), 128) as contenders:
        yield Setting(
            f"CartPole-v1, gymnasium's vector env of {envs}, MLP, 128 steps a batch", contenders, {SAME: 0.97}
        )


@contextmanager
def pool(envs: int) -> Iterator[Setting]:
    """EnvPool's CartPole; its rows that begin an episode are no frames."""

    def make() -> gymnasium.vector.VectorEnv:
        made = envpool.make_gymnasium("CartPole-v1", num_envs=envs, num_threads=1, seed=0)
        made.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        return made

    with vectors(make, Sampler(mlp()), 128) as contenders:
        yield Setting(f"CartPole-v1, EnvPool of {envs}, MLP, 128 steps a batch", contenders, {SAME: 0.95})


@contextmanager
def images() -> Iterator[Setting]:
    """Observations that are large."""
    with vectors(partial(pong, 8), Sampler(cnn()), 32) as contenders:
        yield Setting("ALE Pong, 8 envs, 4×84×84 bytes, small CNN, 32 steps a batch", contenders, {SAME: 0.98})


def settings() -> Iterator[AbstractContextManager[Setting]]:
    """Each is built when its turn comes."""
    for envs in SAME_POLICY_TARGETS:
        yield cartpole(envs)
    for envs in VECTORS:
        yield native(envs)
        yield pool(envs)
    yield images()


def measure(setting: Setting, rounds: int, seconds: float) -> bool:
    """Print a setting's figures; whether all targets are reached."""
    rates = interleave(setting.contenders, rounds, seconds)
    show(setting.title, rates, "frames/s")
    others = [name for name in setting.contenders if name != BY_HAND]
    return reached(rates, [Target(name, BY_HAND, setting.targets.get(name)) for name in others])


def main() -> int:
    """Measure every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few short rounds: a look, not a measurement")
    rounds, seconds = (9, 0.05) if parser.parse_args().quick else (51, 0.05)
    quiet_threads()
    print(f"one torch thread, {rounds} rounds, {'CPU' if CPU else 'wall'} seconds")
    passed = []
    for setting in settings():
        with setting as open_setting:
            passed.append(measure(open_setting, rounds, seconds))
    return ended(passed)


if __name__ == "__main__":
    sys.exit(main())
