"""Compare ways to step slow envs on several cores while one policy acts.

    python benchmarks/env_processes.py [--quick] [--only NAME ...] [--processes 2]

Frames per second with one torch thread, each contender in a separate process: 16 envs in P processes by
`env_processes`, by hand over gymnasium's `AsyncVectorEnv`, by hand over Stable-Baselines3's `SubprocVecEnv`, by
TorchRL's `ParallelEnv` in its collector, by `MultiSyncCollector` with P workers, which have a copy of the policy each;
and in one process. Needs swath[mujoco,atari,torchrl]. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from rounds import Peer, Run, Target, compare, drawing, ended, parser, python_of, serve, timed

ENVS, STEPS, FRAMES = 16, 32, 10**9


class Busy(gymnasium.Env[Any, Any]):
    """An env that keeps a core busy for a number of seconds per step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (17,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)

    def __init__(self, seconds: float) -> None:
        self._seconds, self._observation = seconds, np.zeros(17, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        """Begin an episode, which never ends."""
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Compute for the time."""
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass
        return self._observation, 0.0, False, False, {}


def pong() -> Any:
    """Return Pong with the usual preprocessing, a stack of four frames."""
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5", frameskip=1)
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(env), 4)


class Case(NamedTuple):
    """Envs, the size of their actions or the number of choices, and targets by contender."""

    make: Callable[[], Any]
    targets: dict[str, float]
    actions: int = 6
    choices: bool = False


WANTED = {"AsyncVectorEnv by hand": 2.5, "SubprocVecEnv by hand": 2.0, "ParallelEnv of TorchRL": 3.0}
WANTED |= {"MultiSyncCollector": 0.85}
CASES = {
    "HalfCheetah": Case(partial(gymnasium.make, "HalfCheetah-v5"), WANTED),
    "Pong": Case(pong, WANTED, choices=True),
    "50 us": Case(partial(Busy, 50e-6), {}),
    "500 us": Case(partial(Busy, 500e-6), {}),
    "5 ms": Case(partial(Busy, 5e-3), {}),
}


def policy_of(case: Case) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a policy that acts at random, in one call for all envs."""
    if case.choices:
        return lambda observation: torch.randint(case.actions, observation.shape[:1])
    return lambda observation: torch.rand(*observation.shape[:1], case.actions) * 2 - 1


def by_hand(env: Any, case: Case, *, of_gymnasium: bool) -> Run:
    """Return rates of the loop that users write: act, step, keep the rows."""
    act, last = policy_of(case), env.reset()
    last = last[0] if of_gymnasium else last
    rows = np.empty((STEPS, *last.shape), last.dtype)

    def collect() -> int:
        nonlocal last
        for t in range(STEPS):
            rows[t] = last
            last = env.step(act(torch.from_numpy(last)).numpy())[0]
        return ENVS * STEPS

    return timed(collect)


def contender(name: str, case: Case, processes: int) -> Run:
    """Return the rates of one way."""
    makes = [case.make] * ENVS
    if name == "AsyncVectorEnv by hand":
        return by_hand(gymnasium.vector.AsyncVectorEnv(makes), case, of_gymnasium=True)
    if name == "SubprocVecEnv by hand":
        from stable_baselines3.common.vec_env import SubprocVecEnv

        return by_hand(SubprocVecEnv(makes, start_method="fork"), case, of_gymnasium=False)
    if name == "ParallelEnv of TorchRL":
        from tensordict.nn import TensorDictModule
        from torchrl.collectors import Collector as TorchRLCollector
        from torchrl.envs import GymWrapper, ParallelEnv

        parallel = ParallelEnv(ENVS, lambda: GymWrapper(case.make(), categorical_action_encoding=True))
        policy = TensorDictModule(policy_of(case), ["observation"], ["action"])
        return drawing(TorchRLCollector(parallel, policy, frames_per_batch=ENVS * STEPS, total_frames=FRAMES))
    from swath import Collector, MultiSyncCollector

    options: Any = {"frames_per_batch": ENVS * STEPS, "total_frames": FRAMES, "envs_per_worker": ENVS}
    if name == "MultiSyncCollector":
        options["envs_per_worker"] //= processes
        return drawing(MultiSyncCollector([case.make] * processes, policy_of(case), **options))
    return drawing(Collector(case.make, policy_of(case), **options, env_processes=processes if name == OURS else None))


OURS = "env_processes"
CONTENDERS = (OURS, *WANTED, "one process")


def measure(name: str, processes: int, rounds: int, seconds: float) -> bool:
    """Compare, and return whether all targets are reached."""
    pythons = {"SubprocVecEnv by hand": python_of("sb3")}
    peers = {
        kind: Peer(pythons.get(kind, sys.executable), "env_processes.py", kind, name, processes) for kind in CONTENDERS
    }
    try:
        targets = [Target(OURS, kind, CASES[name].targets.get(kind)) for kind in CONTENDERS[1:]]
        return compare(f"16 envs, {processes} processes: {name}", peers, targets, rounds, seconds)
    finally:
        for peer in peers.values():
            peer.close()


def main() -> int:
    """Measure every case."""
    command_line = parser(__doc__)
    command_line.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    command_line.add_argument("--processes", type=int, default=2)
    options = command_line.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "RL_WARNINGS": "0", "RL_LOGGING_LEVEL": "ERROR"}
    rounds, seconds = (3, 1.0) if options.quick else (9, 2.0)
    return ended([measure(name, options.processes, rounds, seconds) for name in options.only])


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in CONTENDERS:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        try:
            serve(contender(sys.argv[1], CASES[sys.argv[2]], int(sys.argv[3])))
        except BaseException:  # noqa: BLE001  printed, and the process ends
            traceback.print_exc()
            os._exit(1)
        os._exit(0)  # at once: some contenders wait for processes that do not end
    else:
        sys.exit(main())
