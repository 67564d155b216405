"""The networks of the benchmarks, in the forms in which users hold them."""

from __future__ import annotations

import torch
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical

from swath.learn import heads, networks
from swath.learn.policy import NetworkPolicy


def mlp(inputs: int = 4, actions: int = 2) -> nn.Sequential:
    """Return a 4-64-64-2 network for CartPole."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions))


class Sampler(nn.Module):
    """A plain module: observations in, sampled actions and their log-probabilities out, as most users write it.

    By default without the distribution's checks of its arguments, which would cost any contender 20 µs.
    """

    in_keys = ("observation",)
    out_keys = ("action", "action_log_prob")

    def __init__(self, net: nn.Module, *, checks: bool = False) -> None:
        super().__init__()
        self.net, self.checks = net, checks

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions `[B]` and log-probabilities `[B]`."""
        choice = Categorical(logits=self.net(observation), validate_args=self.checks)
        action = choice.sample()
        return action, choice.log_prob(action)


def tensordict_actor(net: nn.Module) -> ProbabilisticTensorDictSequential:
    """The same as a tensordict policy."""
    return ProbabilisticTensorDictSequential(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=Categorical,
            distribution_kwargs={"validate_args": False},
            return_log_prob=True,
        ),
    )


def lean_actor(inputs: int = 4, actions: int = 2) -> NetworkPolicy:
    """Return Swath's own head over a network of the same sizes: no distribution object per step."""
    return NetworkPolicy(networks.MLP((inputs, 64, 64, actions)), heads.Categorical(actions))


def quiet_threads() -> None:
    """Limit torch to one thread, as in all measurements."""
    torch.set_num_threads(1)
