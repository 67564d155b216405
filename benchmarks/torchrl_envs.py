"""`Collector` against TorchRL's own over TorchRL's envs, same env and same policy; and over the gymnasium env instead.

    python benchmarks/torchrl_envs.py [--quick]      # needs swath[torchrl]

Frames per second with one torch thread; contenders take turns (see rounds.py), and each ratio is the median over the
rounds. The policy is TorchRL's `ProbabilisticActor` with log-probabilities. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torch.distributions import Categorical, Normal
from torchrl.collectors import Collector as TorchRLCollector
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import ProbabilisticActor

from batched_pendulum import BatchedPendulum
from figures import ended
from policies import mlp, quiet_threads
from rounds import CPU, Run, Target, interleave, reached, show, timed
from swath import Collector

PEER, OURS, GYMNASIUM = "TorchRL's Collector", "Collector, same env", "Collector, the gymnasium env"
TARGET = 1.5


@dataclass(frozen=True)
class Setting:
    """An env of TorchRL's, a policy for it, and the gymnasium env that does the same."""

    title: str
    env: Callable[[], Any]
    policy: Callable[[], Any]
    envs: int
    steps: int
    gymnasium: str


def cartpole() -> GymEnv:
    """With whole numbers for actions, as the gymnasium env has them."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def discrete() -> ProbabilisticActor:
    """4-64-64-2."""
    return ProbabilisticActor(
        TensorDictModule(mlp(), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        distribution_kwargs={"validate_args": False},
        return_log_prob=True,
    )


def continuous() -> ProbabilisticActor:
    """3-64-64-2, for the pendulum."""
    net = nn.Sequential(mlp(3), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=Normal,
        distribution_kwargs={"validate_args": False},
        return_log_prob=True,
    )


SETTINGS = (
    Setting("GymEnv('CartPole-v1')", cartpole, discrete, 1, 256, "CartPole-v1"),
    Setting("SerialEnv(8, GymEnv('CartPole-v1'))", partial(SerialEnv, 8, cartpole), discrete, 8, 64, "CartPole-v1"),
    Setting("a batched pendulum of 64", partial(BatchedPendulum, 64), continuous, 64, 32, "Pendulum-v1"),
)


def collecting(collector: Any) -> Run:
    """Draw batches."""
    batches = iter(collector)
    return timed(lambda: next(batches).numel())


def contenders(setting: Setting, stack: ExitStack) -> dict[str, Run]:
    """All who collect in this setting."""
    frames = setting.envs * setting.steps
    peer = TorchRLCollector(setting.env(), setting.policy(), frames_per_batch=frames, total_frames=-1)
    stack.callback(peer.shutdown)
    ours = stack.enter_context(Collector(setting.env(), setting.policy(), frames_per_batch=frames))
    envs = None if setting.envs == 1 else setting.envs
    other = Collector(setting.gymnasium, setting.policy(), frames_per_batch=frames, envs_per_worker=envs)
    stack.enter_context(other)
    return {PEER: collecting(peer), OURS: collecting(ours), GYMNASIUM: collecting(other)}


def measure(setting: Setting, rounds: int, seconds: float) -> bool:
    """Print a setting's figures; whether the target is reached."""
    with ExitStack() as stack:
        runs = contenders(setting, stack)
        rates = interleave(runs, rounds, seconds)
    show(f"{setting.title}, {setting.steps} steps a batch", rates, "frames/s")
    return reached(rates, [Target(OURS, PEER, TARGET), Target(GYMNASIUM, PEER, None)])


def main() -> int:
    """Measure every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few short rounds: a look, not a measurement")
    rounds, seconds = (7, 0.2) if parser.parse_args().quick else (21, 0.3)
    quiet_threads()
    warnings.filterwarnings("ignore", module="torchrl")
    print(f"one torch thread, {rounds} rounds, {'CPU' if CPU else 'wall'} seconds")
    return ended([measure(setting, rounds, seconds) for setting in SETTINGS])


if __name__ == "__main__":
    sys.exit(main())
