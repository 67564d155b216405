"""Small TorchRL envs and policies, one per thing that can be special about one; all of them deterministic.

An observation tells the step and, where there are several, which agent; an episode's length is told to the env or
follows from the number of the episode, so that rows in the wrong place show themselves.
"""

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import EnvBase
from torchrl.modules import (
    MLP,
    ActorValueOperator,
    GRUModule,
    LSTMModule,
    NormalParamExtractor,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
)

FLAGS = ("done", "terminated")


def _flags(*shape, names=(*FLAGS, "truncated")):
    return Composite({name: Categorical(2, dtype=torch.bool, shape=(*shape, 1)) for name in names}, shape=shape)


class _Scripted(EnvBase):
    """An env that counts its steps; subclasses say what is seen. Episodes last `lengths[i]` steps, in turn."""

    lengths = (4, 7, 3)

    def __init__(self, batch_size=(), **kwargs):
        super().__init__(batch_size=torch.Size(batch_size), **kwargs)
        self._episode = torch.full((*self.batch_size, 1), -1)
        self._step_nr = torch.zeros((*self.batch_size, 1), dtype=torch.int64)
        self._make_specs()

    def _make_specs(self):
        raise NotImplementedError

    def _seen(self):
        raise NotImplementedError

    def _set_seed(self, seed):
        """There is no randomness."""

    def _reset(self, tensordict=None, **kwargs):
        again = torch.ones_like(self._step_nr, dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict:
            again = tensordict["_reset"].reshape(self._step_nr.shape)
        self._episode = self._episode + again.long()
        self._step_nr = self._step_nr.masked_fill(again, 0)
        return self._td({**self._seen(), **self._began()})

    def _began(self):
        return {}

    def _step(self, tensordict):
        self._step_nr = self._step_nr + 1
        return self._td(self._seen()).update(self._td(self._led_to(tensordict)))

    def _led_to(self, tensordict):
        return {"reward": self._step_nr.float(), **self._ends()}

    def _ends(self):
        ended = self._step_nr >= torch.tensor(self.lengths)[self._episode % len(self.lengths)]
        return {"done": ended, "terminated": ended}

    def _td(self, entries):
        return TensorDict(entries, self.batch_size)


class Counting(_Scripted):
    """Sees its step number; the action is not looked at."""

    def _make_specs(self):
        b = self.batch_size
        self.observation_spec = Composite(observation=Unbounded((*b, 1)), shape=b)
        self.action_spec = Bounded(-1, 1, (*b, 1))
        self.reward_spec = Unbounded((*b, 1))
        self.done_spec = _flags(*b, names=FLAGS)

    def _seen(self):
        return {"observation": self._step_nr.float()}


class NestedKeys(_Scripted):
    """Every entry is deep; two rewards of different shapes; flags at the root and below."""

    def _make_specs(self):
        b = self.batch_size
        self.observation_spec = Composite(
            sensors=Composite(
                camera=Composite(left=Bounded(0, 255, (*b, 2, 3), dtype=torch.uint8), shape=b),
                clock=Unbounded((*b, 1), dtype=torch.float64),
                shape=b,
            ),
            shape=b,
        )
        self.action_spec = Composite(control=Composite(motor=Bounded(-1, 1, (*b, 2)), shape=b), shape=b)
        self.reward_spec = Composite(
            scores=Composite(main=Unbounded((*b, 1)), parts=Unbounded((*b, 3)), shape=b), shape=b
        )
        self.done_spec = Composite(_flags(*b, names=FLAGS), part=_flags(*b, names=FLAGS), shape=b)

    def _seen(self):
        step = self._step_nr
        camera = (step.unsqueeze(-1) + torch.arange(6).reshape(2, 3)).to(torch.uint8)
        return {"sensors": self._td({"camera": self._td({"left": camera}), "clock": step.double() / 4})}

    def _began(self):
        no = torch.zeros_like(self._step_nr, dtype=torch.bool)
        return {"part": self._td(dict.fromkeys(FLAGS, no))}

    def _led_to(self, tensordict):
        motor = tensordict["control", "motor"]
        ends = self._ends()
        scores = {"main": motor.sum(-1, keepdim=True), "parts": torch.cat([motor, self._step_nr.float()], -1)}
        return {"scores": self._td(scores), "part": self._td(dict(ends)), **ends}


class TwoParts(EnvBase):
    """Two parts of one world that end, and are reset, each by itself: no flags at the root."""

    lengths = {"first": 3, "second": 5}

    def __init__(self):
        super().__init__(batch_size=torch.Size(()))
        self._counts = dict.fromkeys(self.lengths, 0)
        self.observation_spec = Composite({part: Composite(count=Unbounded((1,))) for part in self.lengths})
        self.action_spec = Composite({part: Composite(action=Bounded(-1, 1, (1,))) for part in self.lengths})
        self.reward_spec = Composite({part: Composite(reward=Unbounded((1,))) for part in self.lengths})
        self.done_spec = Composite({part: _flags(names=FLAGS) for part in self.lengths})

    def _set_seed(self, seed):
        """There is no randomness."""

    def _reset(self, tensordict=None, **kwargs):
        for part in self._counts:
            if tensordict is None or bool(tensordict.get((part, "_reset"), torch.ones(1)).any()):
                self._counts[part] = 0
        return self._td({part: {"count": torch.tensor([float(n)])} for part, n in self._counts.items()})

    def _step(self, tensordict):
        entries = {}
        for part, length in self.lengths.items():
            self._counts[part] += 1
            ended = torch.tensor([self._counts[part] >= length])
            count = torch.tensor([float(self._counts[part])])
            reward = tensordict[part, "action"] * count
            entries[part] = {"count": count, "reward": reward, "done": ended, "terminated": ended.clone()}
        return self._td(entries)

    def _td(self, entries):
        no = torch.zeros(1, dtype=torch.bool)
        return TensorDict({part: {**dict.fromkeys(FLAGS, no), **values} for part, values in entries.items()})


class Agents(_Scripted):
    """Three agents in a group, with entries of their own; agents are done one by one, the env with the last."""

    n_agents = 3

    def _make_specs(self):
        b, group = self.batch_size, (*self.batch_size, self.n_agents)
        self.observation_spec = Composite(
            agents=Composite(observation=Unbounded((*group, 2)), shape=group), shared=Unbounded((*b, 1)), shape=b
        )
        self.action_spec = Composite(agents=Composite(action=Categorical(3, shape=group), shape=group), shape=b)
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((*group, 1)), shape=group), shape=b)
        self.done_spec = _flags(*b)

    def _group(self, entries):
        return TensorDict(entries, (*self.batch_size, self.n_agents))

    def _seen(self):
        step = self._step_nr.float()
        place = torch.arange(self.n_agents).float().expand(*self.batch_size, self.n_agents)
        observation = torch.stack([place, step.expand_as(place)], -1)
        return {"agents": self._group({"observation": observation}), "shared": step}

    def _led_to(self, tensordict):
        reward = tensordict["agents", "action"].unsqueeze(-1).float() + self._step_nr.unsqueeze(-1)
        ends = self._ends()
        return {"agents": self._group({"reward": reward}), **ends, "truncated": torch.zeros_like(ends["done"])}


class Heterogeneous(_Scripted):
    """Two agents that see different things, in a lazy stack."""

    def _make_specs(self):
        b = self.batch_size
        each = [Composite(observation=Unbounded((*b, n)), shape=b) for n in (2, 3)]
        acts = [Composite(action=Bounded(-1, 1, (*b, n)), shape=b) for n in (1, 1)]
        self.observation_spec = Composite(agents=torch.stack(each, len(b)), shape=b)
        self.action_spec = Composite(agents=torch.stack(acts, len(b)), shape=b)
        self.reward_spec = Unbounded((*b, 1))
        self.done_spec = _flags(*b, names=FLAGS)

    def _seen(self):
        each = [self._td({"observation": self._step_nr.float().expand(*self.batch_size, n) + n}) for n in (2, 3)]
        return {"agents": LazyStackedTensorDict(*each, stack_dim=len(self.batch_size))}


class Growing(_Scripted):
    """Sees as many rows as it made steps, and one more."""

    def _make_specs(self):
        b = self.batch_size
        self.observation_spec = Composite(
            observation=Unbounded((*b, -1, 2)), count=Unbounded((*b, 1), dtype=torch.int64), shape=b
        )
        self.action_spec = Bounded(-1, 1, (*b, 1))
        self.reward_spec = Unbounded((*b, 1))
        self.done_spec = _flags(*b, names=FLAGS)

    def _seen(self):
        n_rows = int(self._step_nr.max()) + 1
        rows = torch.arange(n_rows).float().unsqueeze(-1).expand(*self.batch_size, n_rows, 2)
        return {"observation": rows, "count": self._step_nr}


class Talking(_Scripted):
    """Says what no tensor can hold."""

    def _make_specs(self):
        b = self.batch_size
        self.observation_spec = Composite(observation=Unbounded((*b, 1)), text=NonTensor(b, example_data="a"), shape=b)
        self.action_spec = Bounded(-1, 1, (*b, 1))
        self.reward_spec = Unbounded((*b, 1))
        self.done_spec = _flags(*b, names=FLAGS)

    def _seen(self):
        if self.batch_size:
            text = NonTensorStack(*[f"step {n}" for n in self._step_nr.flatten().tolist()])
        else:
            text = NonTensorData(f"step {int(self._step_nr)}")
        return {"observation": self._step_nr.float(), "text": text}


class Images(_Scripted):
    """Sees pixels of one byte each beside a vector."""

    def _make_specs(self):
        b = self.batch_size
        self.observation_spec = Composite(
            pixels=Bounded(0, 255, (*b, 3, 16, 16), dtype=torch.uint8), observation=Unbounded((*b, 2)), shape=b
        )
        self.action_spec = Binary(4, (*b, 4), dtype=torch.int8)
        self.reward_spec = Unbounded((*b, 1))
        self.done_spec = _flags(*b)

    def _seen(self):
        pixels = (self._step_nr.reshape(*self.batch_size, 1, 1, 1) + torch.arange(768).reshape(3, 16, 16)) % 256
        return {"pixels": pixels.to(torch.uint8), "observation": self._step_nr.float().expand(*self.batch_size, 2)}

    def _ends(self):
        ended = super()._ends()["done"]
        cut = ended & (self._episode % 2 == 0)
        return {"done": ended, "terminated": ended & ~cut, "truncated": cut}


class Pendulum(EnvBase):
    """The classic swing-up, written without a state of its own: what it knows is in the TensorDict, in any batch size.

    The equations are those of gymnasium's `Pendulum-v1`.
    """

    batch_locked = False
    max_speed, max_torque, dt, gravity = 8.0, 2.0, 0.05, 10.0

    def __init__(self, batch_size=(), seed=0):
        super().__init__(batch_size=torch.Size(batch_size))
        b = self.batch_size
        self.observation_spec = Composite(
            th=Bounded(-np.pi, np.pi, b), thdot=Bounded(-self.max_speed, self.max_speed, b), shape=b
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(-self.max_torque, self.max_torque, (*b, 1))
        self.reward_spec = Unbounded((*b, 1))
        self.done_spec = _flags(*b)
        self.set_seed(seed)

    def _set_seed(self, seed):
        self._rng = torch.Generator().manual_seed(seed)

    def _reset(self, tensordict=None, **kwargs):
        shape = self.batch_size if tensordict is None else tensordict.shape
        draw = torch.rand((*shape, 2), generator=self._rng) * 2 - 1
        return TensorDict({"th": draw[..., 0] * np.pi, "thdot": draw[..., 1]}, shape)

    def _step(self, tensordict):
        th, thdot = tensordict["th"], tensordict["thdot"]
        torque = tensordict["action"].squeeze(-1).clamp(-self.max_torque, self.max_torque)
        angle = (th + np.pi) % (2 * np.pi) - np.pi
        cost = angle**2 + 0.1 * thdot**2 + 0.001 * torque**2
        thdot = thdot + (1.5 * self.gravity * th.sin() + 3.0 * torque) * self.dt
        thdot = thdot.clamp(-self.max_speed, self.max_speed)
        reward = -cost.unsqueeze(-1)
        no = torch.zeros_like(reward, dtype=torch.bool)
        entries = {"th": th + thdot * self.dt, "thdot": thdot, "reward": reward}
        return TensorDict({**entries, "done": no, "terminated": no, "truncated": no}, tensordict.shape)


class Answer(TensorDictModuleBase):
    """A policy as a function of one entry: writes `fn(entry)`."""

    def __init__(self, fn, in_key="observation", out_key="action"):
        super().__init__()
        self.fn, self.in_keys, self.out_keys = fn, [in_key], [out_key]

    def forward(self, tensordict):
        return tensordict.set(self.out_keys[0], self.fn(tensordict.get(self.in_keys[0])))


def lean_left(observation):
    """CartPole: 1 where the pole leans to the right."""
    return (observation[..., 2] > 0).long()


def lean_left_one_hot(observation):
    """The same in TorchRL's usual encoding."""
    return nn.functional.one_hot(lean_left(observation), 2)


def push(observation):
    """A number in [-1, 1] for a scripted env."""
    return torch.sin(observation[..., :1])


class PushBoth(TensorDictModuleBase):
    """For an env of two parts."""

    in_keys = [("first", "count"), ("second", "count")]
    out_keys = [("first", "action"), ("second", "action")]

    def forward(self, tensordict):
        for read, written in zip(self.in_keys, self.out_keys, strict=True):
            tensordict.set(written, tensordict.get(read).sin())
        return tensordict


def linear(n_in=1, n_out=1, out_key="action", seed=0):
    """A network in a `TensorDictModule`."""
    torch.manual_seed(seed)
    return TensorDictModule(nn.Linear(n_in, n_out), ["observation"], [out_key])


def gaussian(n_in, n_out):
    """An actor with a log-probability."""
    torch.manual_seed(0)
    net = nn.Sequential(MLP(in_features=n_in, out_features=2 * n_out, num_cells=[8]), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )


def actor_value(n_in, n_out):
    """Actor and value over a common network."""
    torch.manual_seed(0)
    common = TensorDictModule(nn.Linear(n_in, 8), ["observation"], ["hidden"])
    head = TensorDictModule(
        nn.Sequential(nn.Linear(8, 2 * n_out), NormalParamExtractor()), ["hidden"], ["loc", "scale"]
    )
    actor = ProbabilisticActor(head, ["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True)
    return ActorValueOperator(common, actor, ValueOperator(nn.Linear(8, 1), in_keys=["hidden"]))


def lstm(n_in):
    """A recurrent actor; its module, for the primer, and the policy."""
    torch.manual_seed(0)
    module = LSTMModule(input_size=n_in, hidden_size=5, in_key="observation", out_key="features")
    return module, TensorDictSequential(module, TensorDictModule(nn.Linear(5, 1), ["features"], ["action"]))


def gru(n_in):
    """Another."""
    torch.manual_seed(0)
    module = GRUModule(input_size=n_in, hidden_size=5, in_key="observation", out_key="features")
    return module, TensorDictSequential(module, TensorDictModule(nn.Linear(5, 1), ["features"], ["action"]))
