"""The table of TorchRL envs and policies for tests of the collector; every case is deterministic."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchrl_toys as toys
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import (
    Compose,
    DoubleToFloat,
    EnvCreator,
    GymEnv,
    InitTracker,
    ObservationNorm,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    VecNorm,
)
from torchrl_toys import Answer, Counting, lean_left, lean_left_one_hot, push

import ray_cluster


@dataclass(frozen=True)
class Case:
    """Functions that build an env and a policy."""

    name: str
    env: Callable[[], Any]
    policy: Callable[[], Any]
    steps: int = 12


def cartpole(**kwargs):
    """Return TorchRL's CartPole with a seed."""
    env = GymEnv("CartPole-v1", **kwargs)
    env.set_seed(3)
    return env


def seeded(env, seed=3):
    """Return the env after `set_seed`."""
    env.set_seed(seed)
    return env


def transformed(*transforms, env=Counting):
    """Return an env with transforms."""
    return TransformedEnv(env(), Compose(*transforms) if len(transforms) > 1 else transforms[0])


def primed():
    """Return an env with the primer of a recurrent policy."""
    primer = toys.lstm(1)[0].make_tensordict_primer()
    return transformed(InitTracker(), primer, env=lambda: Counting((2,)))


class Heterogeneous(TensorDictModuleBase):
    """A policy for agents with different observations."""

    in_keys, out_keys = ["agents"], [("agents", "action")]

    def forward(self, tensordict):
        actions = [agent.get("observation")[..., :1].sin() for agent in tensordict.get("agents").unbind(-1)]
        return tensordict.set(("agents", "action"), torch.stack(actions, -2))


def both_ways(clock):
    """A policy for the env of nested keys."""
    return torch.cat([clock.sin(), clock.cos()], -1).float()


def start_method():
    """Return a start method: forks are quickest, but lose answers of Ray's connections if Ray is running."""
    return "spawn" if ray_cluster.is_up() else "fork"


def table():
    """Return all cases."""
    cat, hot = lambda: Answer(lean_left), lambda: Answer(lean_left_one_hot)
    pushing = lambda: Answer(push)
    return [
        Case("gym", lambda: cartpole(categorical_action_encoding=True), cat, steps=25),
        Case("gym one-hot", cartpole, hot, steps=25),
        Case("gym batched", lambda: cartpole(num_envs=3, categorical_action_encoding=True), cat, steps=20),
        Case("gym continuous", lambda: seeded(GymEnv("Pendulum-v1")), lambda: Answer(push)),
        Case("gym pixels", lambda: cartpole(from_pixels=True, pixels_only=False), hot, steps=3),
        Case("serial", lambda: seeded(SerialEnv(3, cartpole)), hot, steps=25),
        Case("serial of scripted envs", lambda: SerialEnv(2, [Counting, Longer]), pushing),
        Case(
            "parallel",
            lambda: seeded(ParallelEnv(2, EnvCreator(cartpole), mp_start_method=start_method())),
            hot,
            steps=25,
        ),
        Case("scripted", Counting, pushing),
        Case("scripted, batched twice", lambda: Counting((2, 3)), pushing),
        Case("nested keys", toys.NestedKeys, lambda: Answer(both_ways, ("sensors", "clock"), ("control", "motor"))),
        Case("several done keys", toys.TwoParts, toys.PushBoth),
        Case(
            "agents, batched",
            lambda: toys.Agents((2,)),
            lambda: Answer(lambda x: x.sum(-1).long() % 3, ("agents", "observation"), ("agents", "action")),
        ),
        Case("heterogeneous, batched", lambda: toys.Heterogeneous((2,)), Heterogeneous),
        Case("growing", toys.Growing, lambda: Answer(lambda rows: rows.sum((-1, -2)).unsqueeze(-1).div(10).tanh())),
        Case("non-tensor, batched", lambda: toys.Talking((2,)), pushing),
        Case("StepCounter, batched", lambda: transformed(StepCounter(5), env=lambda: Counting((2,))), pushing),
        Case("VecNorm", lambda: transformed(VecNorm(["observation"])), pushing),
        Case(
            "composed",
            lambda: transformed(
                DoubleToFloat(), InitTracker(), RewardSum(), StepCounter(6), ObservationNorm(1.0, 2.0, ["observation"])
            ),
            pushing,
        ),
        Case(
            "composed over serial",
            lambda: TransformedEnv(SerialEnv(2, Counting), Compose(RewardSum(), StepCounter(5))),
            pushing,
        ),
        Case("log-prob", Counting, lambda: toys.gaussian(1, 1)),
        Case("LSTM, batched", primed, lambda: toys.lstm(1)[1]),
    ]


class Longer(Counting):
    """An env with other lengths of episodes."""

    lengths = (2, 5)
