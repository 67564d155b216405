"""Policies called by plan answer as they do without, bit for bit, and leave generators and buffers as they would."""

import itertools
import logging
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_toys import VECTOR, observed, spec_of
from tensordict import TensorDict
from tensordict.nn import (
    CompositeDistribution,
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    WrapModule,
)
from torch import nn
from torch.distributions import Categorical, Normal

from swath import Collector, MultiSyncCollector
from swath.rollout.policies.binding import bind
from swath.rollout.policies.calling import BindingOptions

rl = pytest.importorskip("torchrl.modules")

RANDOM, MODE, MEAN = InteractionType.RANDOM, InteractionType.MODE, InteractionType.MEAN
DETERMINISTIC = InteractionType.DETERMINISTIC
BOX = spaces.Box(-1, 1, (2,))
ONE_HOT = spaces.MultiBinary(3)
SEVERAL = spaces.Dict({"position": VECTOR, "in": spaces.Dict({"side": VECTOR})})
GROUPED = spaces.Dict({"a": VECTOR, "b": VECTOR})


def normal_net(n=2, out=("loc", "scale"), obs=4):
    net = nn.Sequential(nn.Linear(obs, 8), nn.Tanh(), nn.Linear(8, 2 * n), NormalParamExtractor())
    return TensorDictModule(net, in_keys=["observation"], out_keys=[*out])


def logits_net(n=3, key="logits"):
    return TensorDictModule(nn.Linear(4, n), in_keys=["observation"], out_keys=[key])


def gaussian(distribution=None, **options):
    distribution = distribution or rl.TanhNormal
    return rl.ProbabilisticActor(
        normal_net(), in_keys=["loc", "scale"], distribution_class=distribution, return_log_prob=True, **options
    )


def discrete(distribution=None, **options):
    distribution = distribution or rl.OneHotCategorical
    return rl.ProbabilisticActor(
        logits_net(), in_keys=["logits"], distribution_class=distribution, return_log_prob=True, **options
    )


def plain_probabilistic(**options):
    draw = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical, **options)
    return ProbabilisticTensorDictSequential(logits_net(), draw)


def actor_value():
    common = TensorDictModule(nn.Linear(4, 4), in_keys=["observation"], out_keys=["hidden"])
    head = TensorDictModule(
        nn.Sequential(nn.Linear(4, 4), NormalParamExtractor()), in_keys=["hidden"], out_keys=["loc", "scale"]
    )
    actor = rl.ProbabilisticActor(
        head, in_keys=["loc", "scale"], distribution_class=rl.TanhNormal, return_log_prob=True
    )
    return rl.ActorValueOperator(common, actor, rl.ValueOperator(nn.Linear(4, 1), in_keys=["hidden"]))


def actor_critic():
    common = TensorDictModule(nn.Linear(4, 4), in_keys=["observation"], out_keys=["hidden"])
    actor = rl.Actor(nn.Linear(4, 2), in_keys=["hidden"])
    value = rl.ValueOperator(ConcatNet(), in_keys=["hidden", "action"])
    return rl.ActorCriticOperator(common, actor, value)


class ConcatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 1)

    def forward(self, hidden, action):
        return self.net(torch.cat([hidden, action], -1))


class GroupNet(nn.Module):
    """Returns parameters by the name of the action."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x):
        loc, scale = self.net(x).chunk(2, -1)
        return TensorDict({"action": {"loc": loc, "scale": scale.exp()}}, batch_size=x.shape[:-1])


def composite():
    return rl.ProbabilisticActor(
        TensorDictModule(GroupNet(), in_keys=["observation"], out_keys=["params"]),
        in_keys=["params"],
        distribution_class=CompositeDistribution,
        distribution_kwargs={"distribution_map": {"action": Normal}},
        return_log_prob=True,
    )


def two_draws(**options):
    first = ProbabilisticTensorDictModule(["loc", "scale"], ["latent"], distribution_class=Normal, return_log_prob=True)
    second = TensorDictModule(nn.Linear(2, 3), in_keys=["latent"], out_keys=["logits"])
    last = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical, return_log_prob=True)
    return ProbabilisticTensorDictSequential(normal_net(), first, second, last, **options)


def selected(policy, *keys):
    return policy.select_out_keys(*keys)


def with_egreedy():
    from torchrl.data import OneHot

    greedy = rl.EGreedyModule(OneHot(3), eps_init=0.5, eps_end=0.5)
    return TensorDictSequential(rl.QValueActor(nn.Linear(4, 3), in_keys=["observation"], spec=OneHot(3)), greedy)


def with_noise(kind=rl.AdditiveGaussianModule, **options):
    from torchrl.data import Bounded

    noise = kind(spec=Bounded(-1, 1, (2,)), **options)
    return TensorDictSequential(rl.Actor(nn.Linear(4, 2)), noise)


class Doubles(TensorDictModule):
    """A user's part with its own `forward`."""

    def forward(self, tensordict):
        tensordict["action"] = 2 * super().forward(tensordict)["action"]
        return tensordict


class Named(TensorDictModule):
    """A user's part with nothing but a constructor and helpers."""

    def __init__(self):
        super().__init__(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])

    def helper(self):
        return 1


class Backwards(TensorDictModuleBase):
    """Gives its entries in the order of its calls: the private one moves to the front when it is there."""

    in_keys, out_keys = ("observation",), ("action", "_sum")

    def forward(self, td):
        earlier = td.get("_sum", torch.zeros(td["observation"].shape))
        return TensorDict({"_sum": earlier + td["observation"], "action": earlier[..., :2]}, td.batch_size)


def reordered():
    return TensorDictSequential(TensorDictModule(torch.tanh, ["observation"], ["h"]), Backwards())


def dropping():
    rename = WrapModule(lambda td: td.exclude("hidden"), in_keys=["hidden"], out_keys=[])
    first = TensorDictModule(nn.Linear(4, 4), in_keys=["observation"], out_keys=["hidden"])
    last = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])
    return TensorDictSequential(first, rename, last)


def nested():
    first = TensorDictModule(nn.Linear(4, 4), in_keys=[("in", "side")], out_keys=[("h", "x")])
    second = TensorDictModule(nn.Linear(4, 2), in_keys=["position"], out_keys=["action"])
    third = TensorDictModule(nn.Linear(4, 1), in_keys=[("h", "x")], out_keys=[("h", "y")])
    return TensorDictSequential(first, second, third)


def functions():
    return TensorDictSequential(
        TensorDictModule(lambda x: (x.tanh(), None or x * 2), in_keys=["observation"], out_keys=["h", "_"]),
        TensorDictModule(lambda h: {"action": h[..., :2], "extra": h.sum(-1)}, in_keys=["h"], out_keys=["action"]),
    )


class Methods(nn.Module):
    def act(self, x, factor):
        return x[..., :2] * factor


def with_lstm():
    lstm = rl.LSTMModule(4, 4, in_key="observation", out_key="h")
    return TensorDictSequential(lstm, TensorDictModule(nn.Linear(4, 2), in_keys=["h"], out_keys=["action"]))


def several_actions():
    net = TensorDictModule(nn.Linear(4, 8), in_keys=["observation"], out_keys=["h"])
    parts = [TensorDictModule(nn.Linear(8, 4), in_keys=["h"], out_keys=[("action", name)]) for name in ("b", "a")]
    return TensorDictSequential(net, *parts)


# policy, action space, observation space
KNOWN = {
    "module": (lambda: TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"]), BOX),
    "subclass": (Named, BOX),
    "actor": (lambda: rl.Actor(nn.Linear(4, 2)), BOX),
    "tanh normal": (gaussian, BOX),
    "bounded tanh normal": (lambda: gaussian(distribution_kwargs={"low": -2.0, "high": torch.tensor(2.0)}), BOX),
    "independent normal": (lambda: gaussian(rl.IndependentNormal), BOX),
    "truncated normal": (lambda: gaussian(rl.TruncatedNormal), BOX),
    "normal": (lambda: gaussian(Normal, log_prob_key="own"), BOX),
    "function of a distribution": (lambda: gaussian(independent), BOX),
    "one hot": (discrete, ONE_HOT),
    "categorical": (lambda: discrete(Categorical), spaces.Discrete(3)),
    "tensordict only": (lambda: plain_probabilistic(return_log_prob=True), spaces.Discrete(3)),
    "own generator key": (lambda: plain_probabilistic(generator="rng"), spaces.Discrete(3)),
    "other log prob key": (lambda: discrete(log_prob_key=("own", "score")), ONE_HOT),
    "actor value": (actor_value, BOX),
    "actor critic": (actor_critic, BOX),
    "q values": (lambda: rl.QValueActor(nn.Linear(4, 3), action_space="one_hot"), ONE_HOT),
    "q values of categories": (lambda: rl.QValueActor(nn.Linear(4, 3), action_space="categorical"), spaces.Discrete(3)),
    "composite": (lambda: TensorDictSequential(composite(), rl.ValueOperator(nn.Linear(4, 1))), BOX),
    "two draws": (lambda: two_draws(return_composite=True), spaces.Discrete(3)),
    "two draws, the last gives the distribution": (lambda: two_draws(return_composite=False), spaces.Discrete(3)),
    "selected": (lambda: selected(actor_value(), "action"), BOX),
    "selected in a part": (
        lambda: TensorDictSequential(selected(gaussian(), "action"), rl.ValueOperator(nn.Linear(4, 1))),
        BOX,
    ),
    "selected outputs of one module": (
        lambda: TensorDictSequential(selected(normal_net(out=("action", "scale")), "action"), value_of("action")),
        BOX,
    ),
    "egreedy": (with_egreedy, ONE_HOT),
    "noise": (lambda: with_noise(sigma_init=0.3, sigma_end=0.3), BOX),
    "noise that goes on": (lambda: with_noise(rl.OrnsteinUhlenbeckProcessModule), BOX),
    "noise in another order": (reordered, BOX),
    "own forward": (
        lambda: TensorDictSequential(
            TensorDictModule(nn.Linear(4, 4), in_keys=["observation"], out_keys=["h"]),
            Doubles(nn.Linear(4, 2), in_keys=["h"], out_keys=["action"]),
        ),
        BOX,
    ),
    "dropping": (dropping, BOX),
    "nested": (nested, BOX, SEVERAL),
    "several actions": (several_actions, GROUPED),
    "functions": (functions, BOX),
    "keyword inputs": (
        lambda: TensorDictSequential(
            TensorDictModule(lambda b, a: a - 2 * b, in_keys={"a": "position", "b": ("in", "side")}, out_keys=["h"]),
            TensorDictModule(nn.Linear(4, 2), in_keys=["h"], out_keys=["action"]),
        ),
        BOX,
        SEVERAL,
    ),
    "method": (
        lambda: TensorDictModule(
            Methods(), in_keys=["observation"], out_keys=["action"], method="act", method_kwargs={"factor": 3}
        ),
        BOX,
    ),
    "ordered dict": (
        lambda: TensorDictSequential({"a": normal_net(out=("h", "scale")), "b": value_of("h", "action")}),
        spaces.Box(-1, 1, (1,)),
    ),
    "batch norm": (
        lambda: TensorDictModule(
            nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), in_keys=["observation"], out_keys=["action"]
        ),
        BOX,
    ),
    "dropout": (
        lambda: TensorDictModule(
            nn.Sequential(nn.Dropout(), nn.Linear(4, 2)), in_keys=["observation"], out_keys=["action"]
        ),
        BOX,
    ),
    "numpy noise": (
        lambda: TensorDictModule(
            lambda x: x[..., :2] + float(np.random.rand()),
            in_keys=["observation"],
            out_keys=["action"],
        ),
        BOX,
    ),
    "overwritten input": (
        lambda: TensorDictSequential(
            TensorDictModule(torch.tanh, in_keys=["observation"], out_keys=["observation"]),
            TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"]),
        ),
        BOX,
    ),
    "lazy": (
        lambda: TensorDictModule(nn.LazyLinear(2), in_keys=["observation"], out_keys=["action"]),
        BOX,
    ),
    "lstm": (with_lstm, BOX),
}


def independent(loc, scale):
    return torch.distributions.Independent(Normal(loc, scale), 1)


def value_of(key, out="value"):
    return TensorDictModule(nn.Linear(2, 1), in_keys=[key], out_keys=[out])


def outcome(policy, spec, *, plans, exploration, n_calls=4, seed=3):
    """Return outputs of several calls, the policy's buffers and the generators' next numbers."""
    with torch.no_grad():
        torch.manual_seed(seed)
        np.random.seed(seed)
        bound = bind(policy, spec, observed(spec), BindingOptions(plans=plans, exploration=exploration))
        answers = [bound(observed(spec, seed)) for seed in range(1, n_calls)]
    states = [value.clone() for value in policy.state_dict().values() if isinstance(value, torch.Tensor)]
    return bound, (bound.keys, answers, states, torch.rand(1), np.random.rand())


def bits(value):
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def both_ways(make, action, observation=VECTOR, *, exploration=RANDOM, num_envs=3, bare=False):
    """Return the policy bound with a plan, after both gave the same outcome."""
    spec = spec_of(observation, action, num_envs, bare=bare)
    outcomes = []
    for plans in (False, True):
        torch.manual_seed(0)
        policy = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bound, found = outcome(policy, spec, plans=plans, exploration=exploration)
        outcomes.append(bits(found))
    assert outcomes[0] == outcomes[1]
    return bound


@pytest.mark.parametrize("name", KNOWN)
def test_a_plan_answers_as_the_policy(name):
    assert both_ways(*KNOWN[name]).reason_for_no_plan is None


@pytest.mark.parametrize("name", ["tanh normal", "one hot", "actor value", "normal", "composite"])
@pytest.mark.parametrize(("num_envs", "bare"), [(64, False), (1, True)])
def test_a_plan_serves_any_number_of_envs(name, num_envs, bare):
    assert both_ways(*KNOWN[name], num_envs=num_envs, bare=bare).reason_for_no_plan is None


@pytest.mark.parametrize(
    ("name", "exploration"),
    [
        *itertools.product(["normal", "tensordict only", "one hot"], [MODE, DETERMINISTIC]),
        *itertools.product(["tanh normal", "composite", "two draws", "egreedy", "noise"], [DETERMINISTIC]),
        *itertools.product(["tanh normal", "normal"], [MEAN]),
    ],
)
def test_a_plan_takes_what_the_exploration_type_says(name, exploration):
    assert both_ways(*KNOWN[name], exploration=exploration).reason_for_no_plan is None


@pytest.mark.parametrize("envs", [None, 3])
def test_batches_are_the_same_with_plans_and_without(envs):
    batches = []
    for plans in (False, True):
        torch.manual_seed(0)
        policy = rl.ProbabilisticActor(
            normal_net(1, obs=3), in_keys=["loc", "scale"], distribution_class=rl.TanhNormal, return_log_prob=True
        )
        with Collector(
            "Pendulum-v1", policy, frames_per_batch=12, total_frames=36, seed=5, envs_per_worker=envs, plans=plans
        ) as collector:
            found = [[*batch.items(include_nested=True, leaves_only=True)] for batch in collector]
            batches.append([(key, bits(value)) for items in found for key, value in items])
    assert batches[0] == batches[1]


# ---- no plan


class Counts(nn.Module):
    """Counts its calls."""

    def __init__(self):
        super().__init__()
        self.net, self.calls = nn.Linear(4, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.net(x) + self.calls


def closure_with_state():
    calls = []

    def act(x):
        calls.append(1)
        return x[..., :2] + len(calls)

    return TensorDictModule(act, in_keys=["observation"], out_keys=["action"])


def hooked():
    policy = KNOWN["module"][0]()
    policy.register_forward_hook(lambda module, td, answer: answer.set("action", answer["action"] + 1))
    return policy


class OwnSequence(TensorDictSequential):
    def forward(self, tensordict):
        return super().forward(tensordict)


UNKNOWN = {
    "counts": (lambda: TensorDictModule(Counts(), in_keys=["observation"], out_keys=["action"]), "keeps something"),
    "closure": (closure_with_state, "refers to a list"),
    "generator": (lambda: plain_probabilistic(generator=7), "its own random generator"),
    "hook": (hooked, "no part of TensorDictModule is known"),
    "own forward": (
        lambda: OwnSequence(TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])),
        "no part of OwnSequence is known",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_policy_without_plan_says_why_and_is_called_as_before(name, caplog):
    make, reason = UNKNOWN[name]
    with caplog.at_level(logging.DEBUG, logger="swath"):
        bound = both_ways(make, spaces.Discrete(3) if name == "generator" else BOX)
    assert reason in bound.reason_for_no_plan
    assert [record.message for record in caplog.records if "no plan for the policy" in record.message] != []


@pytest.mark.parametrize("exploration", [RANDOM, DETERMINISTIC], ids=str)
def test_generators_of_other_threads_are_not_set_back(exploration, monkeypatch):
    restored = []
    monkeypatch.setattr(torch, "set_rng_state", restored.append)
    policy, spec = gaussian(), spec_of(action=BOX)
    bound = bind(policy, spec, observed(spec), BindingOptions(exploration=exploration, owns_generators=False))
    assert restored == []
    assert (bound.reason_for_no_plan is None) == (exploration is DETERMINISTIC)


def test_plans_can_be_switched_off(monkeypatch):
    spec = spec_of(action=BOX)
    assert bind(gaussian(), spec, observed(spec), BindingOptions(plans=False)).reason_for_no_plan == "plans are off"
    monkeypatch.setenv("SWATH_PLANS", "0")
    assert bind(gaussian(), spec, observed(spec), BindingOptions()).reason_for_no_plan == "plans are off"


def test_a_collector_says_whether_its_policy_has_a_plan():
    def plan(policy):
        makers = [lambda: gymnasium.make("Pendulum-v1")]
        with MultiSyncCollector(makers, policy, frames_per_batch=4, total_frames=4, backend="inline") as collector:
            return collector.stats().get("plan", "")

    calls = []
    keeping = TensorDictModule(lambda x: calls or x[..., :1], in_keys=["observation"], out_keys=["action"])
    assert plan(TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])) == "on"
    assert "refers to a list" in plan(keeping)
    assert plan(nn.Linear(3, 1)) == ""


# ---- policies that change


CHANGES = {
    "a hook": lambda policy: policy.module[0].register_forward_hook(
        lambda module, td, answer: answer.set("loc", answer["loc"] + 1)
    ),
    "a module": lambda policy: setattr(
        policy.module[0], "module", nn.Sequential(nn.Linear(4, 4), NormalParamExtractor())
    ),
    "keywords": lambda policy: policy.module[1].distribution_kwargs.update(low=-3.0),
    "a tensor of the keywords": lambda policy: policy.module[1].distribution_kwargs["high"].fill_(4.0),
    "an option": lambda policy: setattr(policy.module[1], "distribution_class", rl.IndependentNormal),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_policy_that_changes_gets_another_plan(change):
    found = []
    spec = spec_of(action=BOX)
    for plans in (False, True):
        torch.manual_seed(0)
        policy = gaussian(distribution_kwargs={"high": torch.tensor(2.0)} if "key" in change else {})
        bound, _ = outcome(policy, spec, plans=plans, exploration=RANDOM)
        CHANGES[change](policy)
        bound.renew_plan()
        torch.manual_seed(1)
        with torch.no_grad():
            found.append(bits([bound(observed(spec, seed)) for seed in range(3)]))
        found[-1].append(torch.rand(1).item())
    assert found[0] == found[1]


def test_a_policy_that_does_not_change_keeps_its_plan(caplog):
    spec = spec_of(action=BOX)
    policy = gaussian()
    bound, _ = outcome(policy, spec, plans=True, exploration=RANDOM)
    policy.eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    with caplog.at_level(logging.DEBUG, logger="swath"):
        bound.renew_plan()
    assert caplog.records == []


# ---- checked calls


class Differs(nn.Module):
    """Answers the calls of tensordict and others differently after a while."""

    calls = 0

    def forward(self, x):
        Differs.calls += 1
        return x[..., :2] + (Differs.calls if Differs.calls > 5 else 0)


def test_checked_calls_name_the_first_difference(monkeypatch):
    monkeypatch.setenv("SWATH_PLANS", "check")
    monkeypatch.setattr(Differs, "calls", 0)
    spec = spec_of(action=BOX, num_envs=1)
    policy = TensorDictModule(Differs(), in_keys=["observation"], out_keys=["action"])
    bound = bind(policy, spec, observed(spec), BindingOptions())
    with torch.no_grad():
        bound(observed(spec))
        with pytest.raises(RuntimeError, match=r"step 2: plan and policy TensorDictModule differ: 'action' is \[\["):
            bound(observed(spec))


@pytest.mark.parametrize(
    "name", ["tanh normal", "egreedy", "batch norm", "dropout", "numpy noise", "selected", "nested"]
)
def test_checked_calls_of_equal_ways_pass(name, monkeypatch):
    monkeypatch.setenv("SWATH_PLANS", "check")
    assert both_ways(*KNOWN[name]).reason_for_no_plan is None
