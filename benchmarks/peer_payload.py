"""TorchRL's `RayCollector` with a worker that answers at once: `peer_payload.py sync|async ENVS STEPS ADDRESS`."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Any

import ray
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.collectors.distributed import RayCollector
from torchrl.envs import GymEnv
from torchrl.modules import RandomPolicy

from rounds import serve, timed


class Ready(Collector):
    """Answers with one batch of frames, again and again."""

    _made: Any = None

    def next(self) -> TensorDict:
        """The batch."""
        if self._made is None:
            self._made = frames(*SHAPE)
        return self._made


def frames(envs: int, steps: int) -> TensorDict:
    """Bytes, and what comes with them."""
    shape = (envs, steps)

    def entries() -> dict[str, torch.Tensor]:
        flags = {name: torch.zeros(*shape, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        return {"pixels": torch.zeros(*shape, 4, 84, 84, dtype=torch.uint8), **flags}

    following = TensorDict({**entries(), "reward": torch.zeros(*shape, 1)}, shape)
    acted = {"action": torch.zeros(shape, dtype=torch.int64), "action_log_prob": torch.zeros(shape)}
    return TensorDict({**entries(), **acted, "next": following}, shape)


def main(order: str, address: str) -> None:
    """Serve rates of batches."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ray.init(
        address=address,
        log_to_driver=False,
        runtime_env={"py_executable": sys.executable, "env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    env = partial(GymEnv, "CartPole-v1")
    collector = RayCollector(
        [env],
        RandomPolicy(env().action_spec),
        collector_class=Ready,
        frames_per_batch=SHAPE[0] * SHAPE[1],
        total_frames=10**12,
        sync=order == "sync",
        remote_configs={"num_cpus": 1, "num_gpus": 0, "memory": 10**9},
    )
    batches = iter(collector)

    def collect() -> int:
        assert next(batches).numel() == SHAPE[0] * SHAPE[1]
        return 1

    serve(timed(collect))
    collector.shutdown(shutdown_ray=False)


if __name__ == "__main__":
    SHAPE = int(sys.argv[2]), int(sys.argv[3])
    main(sys.argv[1], sys.argv[4])
