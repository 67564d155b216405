"""Compare `Collector` with loops that keep everything on a GPU, and with TorchRL's Collector.

    python benchmarks/gpu.py [cuda|cpu] [--quick] [--only NAME ...]      # needs swath[torchrl]

Frames per second. A rate counts a batch when the device has done all of its work. On the CPU a dry run, and the
comparison for simulators of CPU tensors. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector as TorchRLCollector

from policies import mlp
from rounds import Run, Target, compare, ended, parser, timed, verdict
from simulators import Pendulums, Pixels
from swath import Collector, MultiSyncCollector
from torchrl_envs import BatchedPendulum

LOOP, OURS, COMPACT = "loop by hand", "Collector", "Collector, compact_obs=True"
BATCHED, PEER = "Collector, TorchRL's env", "TorchRL's Collector"
STEPS = 32


class Choice(nn.Module):
    """Samples one of two actions."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, observation: Tensor) -> Tensor:
        """Return actions `[B]`."""
        return torch.multinomial(self.net(observation).softmax(-1), 1).squeeze(-1)


class Convolutions(nn.Sequential):
    """The network of DQN for images, with two outputs."""

    def __init__(self) -> None:
        first, second, third = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
        rest = nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 2)
        super().__init__(first, nn.ReLU(), second, nn.ReLU(), third, nn.ReLU(), *rest)

    def forward(self, images: Tensor) -> Tensor:
        """Return two numbers per image."""
        return super().forward(images / 255)


class Loop:
    """Collects 32 steps of a vector env with each call, into tensors `[T, B, …]` on the device."""

    def __init__(self, env: Any, policy: Callable[[Tensor], Tensor], device: str) -> None:
        self.env, self.policy, self.device = env, policy, device
        self.observation, _ = env.reset(seed=0)
        self.takes_tensors = isinstance(self.observation, torch.Tensor)

    @torch.no_grad()
    def frames(self) -> int:
        """Collect a batch and return the number of its frames."""
        columns: list[Any] = []
        for _ in range(STEPS):
            before = torch.as_tensor(self.observation).to(self.device, copy=True)
            action = self.policy(before)
            self.observation, reward, terminated, truncated, infos = self.env.step(
                action if self.takes_tensors else action.numpy(force=True)
            )
            following = infos.get("final_obs", self.observation) if self.takes_tensors else self.observation
            step = following, reward, terminated | truncated
            columns.append((before, action, *(torch.as_tensor(part).to(self.device) for part in step)))
        batch = [torch.stack(column) for column in zip(*columns, strict=True)]
        return int(batch[-1].numel())


def done(frames: Callable[[], int], device: str) -> Run:
    """Repeat work, which counts when the device has done it."""

    def work() -> int:
        n_frames = frames()
        if device != "cpu":
            torch.cuda.synchronize()
        return n_frames

    return timed(work)


def draws(collector: Any) -> Callable[[], int]:
    """Return a function that draws a batch and counts its frames."""
    batches = iter(collector)
    return lambda: int(next(batches).numel())


def pendulums(num_envs: int, device: str, rounds: int, seconds: float) -> bool:
    """Compare over a simulator whose tensors are on the device."""
    net, size = mlp(3, 1).to(device), {"frames_per_batch": num_envs * STEPS, "total_frames": -1}
    module = TensorDictModule(net, ["observation"], ["action"])
    make = partial(BatchedPendulum, num_envs, device)
    with ExitStack() as stack:
        ours = stack.enter_context(Collector(partial(Pendulums, num_envs, device), net, **size))
        batched = stack.enter_context(Collector(make, module, **size))
        peer = TorchRLCollector(make(), module, device=device, **size)
        stack.callback(peer.shutdown)
        work = {LOOP: Loop(Pendulums(num_envs, device), net, device).frames}
        work |= {OURS: draws(ours), BATCHED: draws(batched), PEER: draws(peer)}
        targets = [Target(OURS, LOOP, 0.95), Target(BATCHED, PEER, 1.1 if device == "cpu" else 1.2)]
        contenders = {name: done(frames, device) for name, frames in work.items()}
        return compare(f"{num_envs:,} pendulums, tensors", contenders, [*targets, Target(OURS, PEER)], rounds, seconds)


def cpu_envs(make: Any, net: nn.Module, device: str, rounds: int, seconds: float) -> bool:
    """Compare over a vector env of arrays, with policy and batches on the device."""
    env, policy, places = make(), Choice(net).to(device), {"policy_device": device, "storing_device": device}
    size = {"frames_per_batch": env.num_envs * STEPS, "total_frames": -1}
    with ExitStack() as stack:
        work = {LOOP: Loop(env, policy, device).frames}
        for name, compact in ((OURS, False), (COMPACT, True)):
            collector = Collector(make, policy, compact_obs=compact, **size, **places)
            work[name] = draws(stack.enter_context(collector))
        contenders = {name: done(frames, device) for name, frames in work.items()}
        minimum = 1.0 if env.num_envs >= 1024 else None
        title = f"{env.num_envs:,} envs on the CPU, {type(net).__name__} on the device"
        return compare(title, contenders, [Target(OURS, LOOP, minimum), Target(COMPACT, LOOP)], rounds, seconds)


def wide() -> Choice:
    """Return a policy of 9 million parameters."""
    return Choice(nn.Sequential(nn.Linear(4, 3000), nn.ReLU(), nn.Linear(3000, 3000), nn.ReLU(), nn.Linear(3000, 2)))


def publishing(device: str, rounds: int, _: float) -> bool:
    """Compare an update of weights from the device with one copy of them to the host."""
    policy, copies, updates = wide().to(device), list[float](), list[float]()
    rooms = [torch.empty_like(p, device="cpu", pin_memory=device != "cpu") for p in policy.parameters()]
    size = {"frames_per_batch": 64, "total_frames": -1}
    with MultiSyncCollector(["CartPole-v1"] * 2, policy_factory=wide, **size) as collector, torch.no_grad():
        draw = draws(collector)
        for _ in range(rounds):
            began = time.perf_counter()
            for room, parameter in zip(rooms, policy.parameters(), strict=True):
                room.copy_(parameter)
            copies.append(time.perf_counter() - began)
            began = time.perf_counter()
            collector.update_policy_weights_(policy.state_dict())
            updates.append(time.perf_counter() - began)
            draw()
    print("\nweights: 9 million parameters")
    note = f"{1e3 * statistics.median(updates):.1f} ms for an update"
    ratio = statistics.median(updates) / statistics.median(copies)
    return verdict("an update × a copy", ratio, ".2f", maximum=None if device == "cpu" else 1.2, note=note)


def cartpoles(num_envs: int) -> Any:
    """Return CartPoles as one array program."""
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")


CASES: dict[str, Callable[[str, int, float], bool]] = {
    **{f"pendulums-{n}": partial(pendulums, n) for n in (64, 4096, 65536)},
    **{f"cartpoles-{n}": partial(cpu_envs, partial(cartpoles, n), mlp()) for n in (64, 1024)},
    **{f"pixels-{n}": partial(cpu_envs, partial(Pixels, n), Convolutions()) for n in (64, 256)},
    "publishing": publishing,
}


def main() -> int:
    """Measure every case."""
    command_line = parser(__doc__)
    command_line.add_argument("device", nargs="?", default="cuda", choices=("cuda", "cpu"))
    command_line.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    arguments = command_line.parse_args()
    how = (5, 0.2) if arguments.quick else (15, 1.0)
    warnings.filterwarnings("ignore", module="torchrl")
    card = "the CPU" if arguments.device == "cpu" else torch.cuda.get_device_name()
    print(f"{card}, torch {torch.__version__}, {torch.get_num_threads()} threads, {how[0]} rounds")
    return ended([CASES[name](arguments.device, *how) for name in arguments.only])


if __name__ == "__main__":
    sys.exit(main())
