"""Small deterministic TorchRL envs and policies, each with one special feature.

An observation tells the step and, where there are several, which agent; an episode's length is told to the env or
follows from the number of the episode, so that rows in the wrong place show themselves.
"""

import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.data import Bounded, Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import EnvBase
from torchrl.modules import MLP, LSTMModule, NormalParamExtractor, ProbabilisticActor, TanhNormal

FLAGS = ("done", "terminated")


def _flags(*shape, names=(*FLAGS, "truncated")):
    return Composite({name: Categorical(2, dtype=torch.bool, shape=(*shape, 1)) for name in names}, shape=shape)


class _Scripted(EnvBase):
    """An env that counts its steps; subclasses define observations. Episodes last `lengths[i]` steps, in turn."""

    lengths = (4, 7, 3)

    def __init__(self, batch_size=(), **kwargs):
        super().__init__(batch_size=torch.Size(batch_size), **kwargs)
        self._episode = torch.full((*self.batch_size, 1), -1)
        self._step_nr = torch.zeros((*self.batch_size, 1), dtype=torch.int64)
        self._make_specs()

    def _make_specs(self):
        b = self.batch_size
        self.observation_spec = Composite(self._sees(b), shape=b)
        self.action_spec = Bounded(-1, 1, (*b, 1))
        self.reward_spec = Unbounded((*b, 1))
        self.done_spec = _flags(*b, names=FLAGS)

    def _sees(self, b):
        """Return the specs of `_seen`."""
        return {"observation": Unbounded((*b, 1))}

    def _seen(self):
        return {"observation": self._step_nr.float()}

    def _set_seed(self, seed):
        """Do nothing, since the env is deterministic."""

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
    """An env that observes its step number and ignores the action."""


class NestedKeys(_Scripted):
    """An env with nested entries, two rewards of different shapes, and flags at the root and below."""

    def _sees(self, b):
        camera = Composite(left=Bounded(0, 255, (*b, 2, 3), dtype=torch.uint8), shape=b)
        return {"sensors": Composite(camera=camera, clock=Unbounded((*b, 1), dtype=torch.float64), shape=b)}

    def _make_specs(self):
        super()._make_specs()
        b = self.batch_size
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
    """An env of two parts with separate ends and resets, without flags at the root."""

    lengths = {"first": 3, "second": 5}

    def __init__(self):
        super().__init__(batch_size=torch.Size(()))
        self._counts = dict.fromkeys(self.lengths, 0)
        self.observation_spec = Composite({part: Composite(count=Unbounded((1,))) for part in self.lengths})
        self.action_spec = Composite({part: Composite(action=Bounded(-1, 1, (1,))) for part in self.lengths})
        self.reward_spec = Composite({part: Composite(reward=Unbounded((1,))) for part in self.lengths})
        self.done_spec = Composite({part: _flags(names=FLAGS) for part in self.lengths})

    def _set_seed(self, seed):
        """Do nothing, since the env is deterministic."""

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
    """Three agents in a group, with their entries; agents are done one by one, the env with the last."""

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
    """Two agents with different observations, in a lazy stack."""

    def _sees(self, b):
        specs = [Composite(observation=Unbounded((*b, n)), shape=b) for n in (2, 3)]
        return {"agents": torch.stack(specs, len(b))}

    def _make_specs(self):
        super()._make_specs()
        b = self.batch_size
        actions = [Composite(action=Bounded(-1, 1, (*b, 1)), shape=b) for _ in range(2)]
        self.action_spec = Composite(agents=torch.stack(actions, len(b)), shape=b)

    def _seen(self):
        specs = [self._td({"observation": self._step_nr.float().expand(*self.batch_size, n) + n}) for n in (2, 3)]
        return {"agents": LazyStackedTensorDict(*specs, stack_dim=len(self.batch_size))}


class Growing(_Scripted):
    """An env whose observation has one row more than its steps."""

    def _sees(self, b):
        return {"observation": Unbounded((*b, -1, 2)), "count": Unbounded((*b, 1), dtype=torch.int64)}

    def _seen(self):
        n_rows = int(self._step_nr.max()) + 1
        rows = torch.arange(n_rows).float().unsqueeze(-1).expand(*self.batch_size, n_rows, 2)
        return {"observation": rows, "count": self._step_nr}


class Talking(_Scripted):
    """An env with a non-tensor entry."""

    def _sees(self, b):
        return {**super()._sees(b), "text": NonTensor(b, example_data="a")}

    def _seen(self):
        text = NonTensorStack(*[f"step {n}" for n in self._step_nr.flatten().tolist()])
        return {**super()._seen(), "text": text}


class Answer(TensorDictModuleBase):
    """A policy as a function of one entry: writes `fn(entry)`."""

    def __init__(self, fn, in_key="observation", out_key="action"):
        super().__init__()
        self.fn, self.in_keys, self.out_keys = fn, [in_key], [out_key]

    def forward(self, tensordict):
        return tensordict.set(self.out_keys[0], self.fn(tensordict.get(self.in_keys[0])))


def lean_left(observation):
    """Choose 1 in CartPole if the pole leans to the right."""
    return (observation[..., 2] > 0).long()


def lean_left_one_hot(observation):
    """Return the action of `lean_left` one-hot, as TorchRL encodes it."""
    return nn.functional.one_hot(lean_left(observation), 2)


def push(observation):
    """Return a number in [-1, 1] for a scripted env."""
    return torch.sin(observation[..., :1])


class PushBoth(TensorDictModuleBase):
    """Return actions for an env of two parts."""

    in_keys = [("first", "count"), ("second", "count")]
    out_keys = [("first", "action"), ("second", "action")]

    def forward(self, tensordict):
        for read, written in zip(self.in_keys, self.out_keys, strict=True):
            tensordict.set(written, tensordict.get(read).sin())
        return tensordict


def gaussian(n_in, n_out):
    """Return an actor with a log-probability."""
    torch.manual_seed(0)
    net = nn.Sequential(MLP(in_features=n_in, out_features=2 * n_out, num_cells=[8]), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )


def lstm(n_in):
    """Return the module of a recurrent actor, for the primer, and the policy."""
    torch.manual_seed(0)
    module = LSTMModule(input_size=n_in, hidden_size=5, in_key="observation", out_key="features")
    return module, TensorDictSequential(module, TensorDictModule(nn.Linear(5, 1), ["features"], ["action"]))
