"""Policies put together at random from parts, options and keys answer with plans as they do without."""

import random
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_toys import observed, spec_of
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
    WrapModule,
)
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from swath.rollout.policies.binding import bind
from swath.rollout.policies.calling import BindingOptions

rl = pytest.importorskip("torchrl.modules")

KEYS = ["observation", "a", "b", ("g", "a"), ("g", "b"), ("g", "h", "c"), "d"]
KINDS = [*InteractionType]
N_PROGRAMS = 40


class OwnForward(TensorDictModule):
    """A user's part."""

    def forward(self, tensordict):
        return super().forward(tensordict)


def independent(loc, scale):
    return Independent(Normal(loc, scale), 1)


class Program:
    """Draws parts, and knows which entries of what width they find."""

    def __init__(self, seed):
        self.rng, self.width = random.Random(seed), {"observation": 4}

    def key(self):
        return self.rng.choice([*self.width])

    def new_key(self):
        return self.rng.choice(KEYS)

    def network(self):
        source, target, n = self.key(), self.new_key(), self.rng.choice([2, 3, 4])
        layers = [nn.Linear(self.width[source], n), self.rng.choice([nn.Tanh, nn.Identity, nn.Dropout])()]
        self.width[target] = n
        cls = self.rng.choice([TensorDictModule, rl.SafeModule, OwnForward])
        return cls(nn.Sequential(*layers), in_keys=[source], out_keys=[target])

    def function(self):
        first, second, target = self.key(), self.key(), self.new_key()
        n = min(self.width[first], self.width[second])
        self.width[target] = n
        return TensorDictModule(
            lambda x, y: (x[..., :n] * y[..., :n] + torch.rand(()), x), in_keys=[first, second], out_keys=[target, "_"]
        )

    def wrapped(self):
        source, target = self.key(), self.new_key()
        self.width[target] = self.width[source]
        return WrapModule(lambda td: td.set(target, td.get(source) + 1), in_keys=[source], out_keys=[target])

    def draw(self, target=None, n=None):
        source, n, target = self.key(), n or self.rng.choice([2, 3]), target or self.new_key()
        scored, name = self.rng.random() < 0.7, f"net{self.rng.randrange(3)}"
        net = nn.Sequential(nn.Linear(self.width[source], 2 * n), NormalParamExtractor())
        parameters = TensorDictModule(net, in_keys=[source], out_keys=[(name, "loc"), (name, "scale")])
        distribution = self.rng.choice([Normal, independent, rl.TanhNormal, rl.IndependentNormal, rl.TruncatedNormal])
        cls = self.rng.choice([rl.SafeProbabilisticModule, ProbabilisticTensorDictModule])
        self.width |= {(name, "loc"): n, (name, "scale"): n, target: n}
        head = cls(
            in_keys=[(name, "loc"), (name, "scale")],
            out_keys=[target],
            distribution_class=distribution,
            return_log_prob=scored,
            log_prob_key=f"score{self.rng.randrange(3)}",
        )
        return parameters, head

    def drawn(self):
        return self.rng.choice([TensorDictSequential, ProbabilisticTensorDictSequential])(*self.draw())

    def choice(self):
        source, name = self.key(), f"logits{self.rng.randrange(2)}"
        net = TensorDictModule(nn.Linear(self.width[source], 3), in_keys=[source], out_keys=[name])
        head = ProbabilisticTensorDictModule(
            {"logits": name}, ["choice"], distribution_class=self.rng.choice([Categorical, rl.OneHotCategorical])
        )
        return ProbabilisticTensorDictSequential(net, head)

    def part(self):
        kinds = [self.network, self.network, self.function, self.wrapped, self.drawn, self.choice]
        made = self.rng.choice(kinds)()
        if self.rng.random() < 0.1:
            made.register_forward_hook(lambda module, inputs, answer: answer)
        return made

    def policy(self):
        parts = [self.part() for _ in range(self.rng.randrange(5))]
        if len(parts) > 2:
            cut = self.rng.randrange(1, len(parts))
            parts = [TensorDictSequential(*parts[:cut]), *parts[cut:]]
        last = self.draw("action", 2)
        if self.rng.random() < 0.5:
            policy = ProbabilisticTensorDictSequential(*parts, *last)
        else:
            policy = TensorDictSequential(*parts, TensorDictSequential(*last))
        if self.rng.random() < 0.3:
            others = [key for key in policy.out_keys if key not in ("action", "_")]
            policy.select_out_keys("action", *self.rng.sample(others, self.rng.randrange(len(others) + 1)))
        return policy


def outcome(seed, kind, *, plans):
    """Return keys, bits of all outputs and the generator's next number; or the error of the first call."""
    torch.manual_seed(seed)
    policy, spec = Program(seed).policy(), spec_of(action=spaces.Box(-1, 1, (2,)))
    try:
        bound = bind(policy, spec, observed(spec), BindingOptions(plans=plans, exploration=kind))
    except Exception as error:  # whatever is wrong with the program
        return None, type(error)
    with torch.no_grad():
        answers = [bound(observed(spec, number)) for number in range(3)]
    values = [(value.dtype, value.shape, np.asarray(value).tobytes()) for leaves in answers for value in leaves]
    return bound.reason_for_no_plan, (bound.keys, values, torch.rand(1).item())


@pytest.mark.parametrize("seed", range(N_PROGRAMS))
def test_a_program_answers_the_same_with_a_plan(seed):
    kind = KINDS[seed % len(KINDS)] if seed % 2 else InteractionType.RANDOM
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (_, without), (reason, found) = (outcome(seed, kind, plans=plans) for plans in (False, True))
    assert found == without
    assert reason is None
