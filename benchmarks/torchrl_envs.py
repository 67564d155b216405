"""Compare `Collector` with TorchRL's own over TorchRL's envs, and over the gymnasium env instead.

    python benchmarks/torchrl_envs.py [--quick]      # needs swath[torchrl]

Frames per second with one torch thread, same env and same policy: TorchRL's `ProbabilisticActor` with
log-probabilities. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torchrl.collectors import Collector as TorchRLCollector
from torchrl.envs import EnvBase, GymEnv, SerialEnv
from torchrl.modules import ProbabilisticActor

from policies import mlp, quiet_threads
from rounds import CPU, Target, compare, drawing, ended, parser
from swath import Collector
from torchrl import data

PEER, OURS, GYMNASIUM = "TorchRL's Collector", "Collector, same env", "Collector, the gymnasium env"


class BatchedPendulum(EnvBase):
    """Gymnasium's `Pendulum-v1`, B of them in a handful of tensor operations; all are cut after 200 steps."""

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        super().__init__(device=device, batch_size=torch.Size([num_envs]))
        b = self.batch_size
        flag = data.Categorical(2, dtype=torch.bool, shape=(*b, 1), device=device)
        self.observation_spec = data.Composite(observation=data.Unbounded((*b, 3), device), shape=b, device=device)
        self.action_spec = data.Bounded(-2, 2, (*b, 1), device)
        self.reward_spec = data.Unbounded((*b, 1), device)
        flags = {"done": flag, "terminated": flag.clone(), "truncated": flag.clone()}
        self.done_spec = data.Composite(flags, shape=b, device=device)
        self._angle = self._speed = torch.zeros(b, device=device)
        self._steps = torch.zeros(b, dtype=torch.int64, device=device)

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(0 if seed is None else seed)

    def _seen(self) -> Tensor:
        return torch.stack([self._angle.cos(), self._angle.sin(), self._speed], -1)

    def _draw(self) -> Tensor:
        return torch.rand(self.batch_size, device=self.device) * 2 - 1

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        partial_reset = None if tensordict is None else tensordict.get("_reset", None)
        everywhere = torch.ones(self.batch_size, dtype=torch.bool, device=self.device)
        again = everywhere if partial_reset is None else partial_reset.squeeze(-1)
        self._angle = torch.where(again, self._draw() * torch.pi, self._angle)
        self._speed = torch.where(again, self._draw(), self._speed)
        self._steps = self._steps.masked_fill(again, 0)
        return TensorDict({"observation": self._seen()}, self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        torque = tensordict["action"].squeeze(-1).clamp(-2, 2)
        angle = (self._angle + torch.pi) % (2 * torch.pi) - torch.pi
        cost = angle**2 + 0.1 * self._speed**2 + 0.001 * torque**2
        self._speed = (self._speed + (15 * self._angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self._angle = self._angle + self._speed * 0.05
        self._steps = self._steps + 1
        cut = (self._steps >= 200).unsqueeze(-1)
        entries = {"observation": self._seen(), "reward": -cost.unsqueeze(-1)}
        flags = {"done": cut, "terminated": torch.zeros_like(cut), "truncated": cut.clone()}
        return TensorDict({**entries, **flags}, self.batch_size, device=self.device)


class Setting(NamedTuple):
    """An env of TorchRL's, a policy for it, the gymnasium env that does the same, and the target."""

    title: str
    env: Callable[[], Any]
    policy: Callable[[], Any]
    envs: int
    steps: int
    gymnasium: str
    minimum: float


def cartpole() -> GymEnv:
    """Return an env with whole numbers for actions, as the gymnasium env has them."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def actor(net: nn.Module, outputs: list[str], distribution: type) -> ProbabilisticActor:
    """Return an actor with log-probabilities."""
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], outputs),
        in_keys=outputs,
        distribution_class=distribution,
        distribution_kwargs={"validate_args": False},
        return_log_prob=True,
    )


def discrete() -> ProbabilisticActor:
    """Return a 4-64-64-2 actor."""
    return actor(mlp(), ["logits"], Categorical)


def continuous() -> ProbabilisticActor:
    """Return a 3-64-64-2 actor for the pendulum."""
    return actor(nn.Sequential(mlp(3), NormalParamExtractor()), ["loc", "scale"], Normal)


SERIAL, PENDULUM = partial(SerialEnv, 8, cartpole), partial(BatchedPendulum, 64)
SETTINGS = (
    Setting("GymEnv('CartPole-v1')", cartpole, discrete, 1, 256, "CartPole-v1", 2.0),
    Setting("SerialEnv(8, GymEnv('CartPole-v1'))", SERIAL, discrete, 8, 64, "CartPole-v1", 3.5),
    Setting("a batched pendulum of 64", PENDULUM, continuous, 64, 32, "Pendulum-v1", 1.5),
)


def measure(setting: Setting, rounds: int, seconds: float) -> bool:
    """Print a setting's figures, and return whether the target is reached."""
    frames, envs = setting.envs * setting.steps, None if setting.envs == 1 else setting.envs
    with ExitStack() as stack:
        peer = TorchRLCollector(setting.env(), setting.policy(), frames_per_batch=frames, total_frames=-1)
        stack.callback(peer.shutdown)
        ours = stack.enter_context(Collector(setting.env(), setting.policy(), frames_per_batch=frames))
        other = Collector(setting.gymnasium, setting.policy(), frames_per_batch=frames, envs_per_worker=envs)
        stack.enter_context(other)
        contenders = {PEER: drawing(peer), OURS: drawing(ours), GYMNASIUM: drawing(other)}
        targets = [Target(OURS, PEER, setting.minimum), Target(GYMNASIUM, PEER)]
        return compare(f"{setting.title}, {setting.steps} steps a batch", contenders, targets, rounds, seconds)


def main() -> int:
    """Measure every setting."""
    rounds, seconds = (7, 0.2) if parser(__doc__).parse_args().quick else (21, 0.3)
    quiet_threads()
    warnings.filterwarnings("ignore", module="torchrl")
    pandas = "with" if importlib.util.find_spec("pandas") else "without"
    print(f"one torch thread, {rounds} rounds, {'CPU' if CPU else 'wall'} seconds, {pandas} pandas")
    return ended([measure(setting, rounds, seconds) for setting in SETTINGS])


if __name__ == "__main__":
    sys.exit(main())
