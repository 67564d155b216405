"""Compare programs of TorchRL's users on TorchRL's collectors and on Swath's, with one import changed.

    python benchmarks/torchrl_programs.py [--quick] [--only NAME ...]      # needs swath[torchrl,ray]

Frames per second with one torch thread: the same envs, policies and options of the collectors, each contender in a
separate process. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torch.distributions import OneHotCategorical
from torchrl.envs import (
    Compose,
    DoubleToFloat,
    GymEnv,
    InitTracker,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.modules import ProbabilisticActor, TanhNormal

from policies import mlp, quiet_threads
from rounds import Peer, Target, compare, drawing, ended, parser, serve

PEER, OURS = "torchrl", "swath"
FRAMES = 10**9
RAY_INIT = {"num_cpus": 4, "include_dashboard": False, "log_to_driver": False}
ON_RAY = {"sync": True, "remote_configs": {"num_cpus": 1, "num_gpus": 0}, "ray_init_config": RAY_INIT}


class Program(NamedTuple):
    """A program, and the target: Swath's rate as a multiple of TorchRL's."""

    collector: str
    env: Callable[[], Any]
    policy: Callable[[], nn.Module]
    frames: int
    target: float


def pendulum() -> GymEnv:
    """Return one pendulum."""
    return GymEnv("Pendulum-v1", device="cpu")


def pendulums() -> SerialEnv:
    """Return eight pendulums."""
    return SerialEnv(8, pendulum)


def parallel_pendulums() -> ParallelEnv:
    """Return eight pendulums in processes."""
    return ParallelEnv(8, pendulum)


def transformed() -> TransformedEnv:
    """Return eight pendulums with the usual transforms."""
    return TransformedEnv(pendulums(), Compose(InitTracker(), StepCounter(), DoubleToFloat(), RewardSum()))


def linear() -> TensorDictModule:
    """Return a linear policy."""
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])


def gaussian() -> ProbabilisticActor:
    """Return a Gaussian squashed by tanh, with log-probabilities."""
    net = nn.Sequential(mlp(3, 2), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2, "high": 2},
        return_log_prob=True,
    )


def one_hot() -> ProbabilisticActor:
    """Return a choice among two one-hot actions, with log-probabilities."""
    logits = TensorDictModule(mlp(), in_keys=["observation"], out_keys=["logits"])
    return ProbabilisticActor(logits, in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True)


PROGRAMS = {
    "pendulum_linear": Program("Collector", pendulum, linear, 1000, 3.0),
    "gymenv_ppo": Program("Collector", pendulum, gaussian, 1000, 2.5),
    "serial8_ppo": Program("Collector", pendulums, gaussian, 1600, 6.0),
    "serial8_transforms": Program("Collector", transformed, gaussian, 1600, 5.0),
    "parallel8_ppo": Program("Collector", parallel_pendulums, gaussian, 1600, 3.0),
    "gymenv_categorical": Program("Collector", partial(GymEnv, "CartPole-v1"), one_hot, 1000, 3.0),
    "ray_pendulum": Program("RayCollector", pendulum, linear, 2000, 3.0),
    "ray_serial8_ppo": Program("RayCollector", pendulums, gaussian, 3200, 6.0),
    "multi_serial8_ppo": Program("MultiSyncCollector", pendulums, gaussian, 3200, 6.0),
}


def serve_program(library: str, name: str) -> None:
    """Serve the rates of a program."""
    warnings.simplefilter("ignore")
    quiet_threads()
    if library == PEER:
        from torchrl.collectors import Collector, MultiSyncCollector
        from torchrl.collectors.distributed import RayCollector
    else:
        from swath import Collector, MultiSyncCollector, RayCollector
    kinds: dict[str, Any] = {
        "Collector": Collector,
        "MultiSyncCollector": MultiSyncCollector,
        "RayCollector": partial(RayCollector, **ON_RAY),
    }
    program = PROGRAMS[name]
    torch.manual_seed(0)
    env: Any = program.env if program.collector == "Collector" else [program.env] * 2
    collector = kinds[program.collector](env, program.policy(), frames_per_batch=program.frames, total_frames=FRAMES)
    serve(drawing(collector))
    collector.shutdown()


def measure(name: str, rounds: int, seconds: float) -> bool:
    """Compare, and return whether the target is reached."""
    contenders = {library: Peer(sys.executable, "torchrl_programs.py", library, name) for library in (PEER, OURS)}
    try:
        return compare(name, contenders, [Target(OURS, PEER, PROGRAMS[name].target)], rounds, seconds)
    finally:
        for contender in contenders.values():
            contender.close()


def main() -> int:
    """Measure every program."""
    command_line = parser(__doc__)
    command_line.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME")
    options = command_line.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "RL_WARNINGS": "0", "RL_LOGGING_LEVEL": "ERROR"}
    rounds, seconds = (5, 0.5) if options.quick else (9, 2.0)
    return ended([measure(name, rounds, seconds) for name in options.only])


if __name__ == "__main__":
    if sys.argv[1:2] in ([PEER], [OURS]):
        serve_program(*sys.argv[1:])
    else:
        sys.exit(main())
