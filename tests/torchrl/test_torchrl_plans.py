"""A TorchRL env with a plan gives the batches that TorchRL's own step gives, bit for bit.

`SWATH_PLAN_PROGRAMS=200` in the environment tries so many random programs.
"""

import os
import random
from dataclasses import replace
from itertools import count, permutations

import gymnasium as gym
import numpy as np
import pytest
import torch
import torchrl.collectors
import torchrl_differences
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Unbounded
from torchrl.envs import (
    ActionMask,
    CatFrames,
    CatTensors,
    ClipTransform,
    Compose,
    DoubleToFloat,
    FrameSkipTransform,
    GrayScale,
    GymEnv,
    GymWrapper,
    InitTracker,
    NoopResetEnv,
    ObservationNorm,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SerialEnv,
    SignTransform,
    StepCounter,
    TensorDictPrimer,
    ToTensorImage,
    Transform,
    TransformedEnv,
    UnsqueezeTransform,
    VecNorm,
    VecNormV2,
)
from torchrl.modules import GRUModule, LSTMModule, OrnsteinUhlenbeckProcessModule, ProbabilisticActor
from torchrl_differences import order_of

from swath import Collector, MultiSyncCollector
from swath.rollout.hosts import transforms

FRAMES, BATCHES, POLICY_ONLY = 48, 3, "on for the policy only: "
N_PROGRAMS = int(os.environ.get("SWATH_PLAN_PROGRAMS", "10"))


class Pictures(gym.Env):
    """Frames of bytes, a mask of actions, short episodes."""

    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (6, 8, 3), np.uint8), action_mask=gym.spaces.MultiBinary(3)
    )
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        mask = self.np_random.integers(0, 2, 3, dtype=np.int8)
        mask[0] = 1
        return {"image": self.np_random.integers(0, 256, (6, 8, 3), dtype=np.uint8), "action_mask": mask}

    def step(self, action):
        ends = self.np_random.random(2) < 0.1
        return self.observe(), float(self.np_random.normal()), bool(ends[0]), bool(ends[1]), {}


class Unusual(gym.Env):
    """Several entries, float64 observations and actions, rewards and flags as numpy gives them, short episodes."""

    observation_space = gym.spaces.Dict(
        position=gym.spaces.Box(-1, 1, (2,), np.float64),
        speed=gym.spaces.Box(-1, 1, (3,), np.float32),
        kind=gym.spaces.Discrete(3),
    )
    action_space = gym.spaces.Box(-1, 1, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        draw = self.np_random
        speed = draw.random(3)  # float64, unlike its space
        return {"position": draw.random(2), "speed": speed, "kind": int(draw.integers(3))}

    def step(self, action):
        ends = self.np_random.random(2) < 0.1
        return self.observe(), np.float32(self.np_random.normal() + action[0]), ends[0], bool(ends[1]), {}


def cartpole(*, categorical=False):
    return GymEnv("CartPole-v1", categorical_action_encoding=categorical)


def sampling(n_inputs, distribution, *, n_outputs=2, flattens=False):
    net = nn.Sequential(nn.Linear(n_inputs, 8), nn.Tanh(), nn.Linear(8, n_outputs))
    if flattens:
        net.insert(0, nn.Flatten(-3))
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=distribution,
        return_log_prob=True,
    )


def linear(n_inputs, key="observation", n_outputs=1):
    return TensorDictModule(nn.Linear(n_inputs, n_outputs), [key], ["action"])


def noisy():
    """Return a policy whose noise keeps private entries from call to call."""
    noise = OrnsteinUhlenbeckProcessModule(GymEnv("Pendulum-v1").action_spec, sigma=2.0, safe=False)
    return TensorDictSequential(linear(3), noise)


JOIN = ["position", "speed"]
ENVS = {
    "one-hot": (cartpole, lambda: sampling(4, torch.distributions.OneHotCategorical), []),
    "categorical": (
        lambda: cartpole(categorical=True),
        lambda: sampling(4, torch.distributions.Categorical),
        [],
    ),
    "pendulum": (lambda: GymEnv("Pendulum-v1", frame_skip=2, device="cpu"), lambda: linear(3), []),
    "noisy": (lambda: GymEnv("Pendulum-v1"), noisy, [InitTracker]),
    "unusual": (
        lambda: GymWrapper(Unusual()),
        lambda: linear(5),
        [DoubleToFloat, lambda: CatTensors(JOIN, "observation")],
    ),
    "pictures": (
        lambda: GymWrapper(Pictures()),
        lambda: sampling(48, torch.distributions.OneHotCategorical, n_outputs=3, flattens=True),
        [
            ActionMask,
            lambda: ToTensorImage(in_keys=["image"], out_keys=["observation"]),
            lambda: GrayScale(in_keys=["observation"]),
        ],
    ),
}
TRANSFORMS = {
    "counter": StepCounter,
    "limit": lambda: StepCounter(max_steps=7),
    "init": InitTracker,
    "sum": RewardSum,
    "float": DoubleToFloat,
    "norm": lambda: ObservationNorm(0.3, 2.0, ["observation"]),
    "standard norm": lambda: ObservationNorm(0.3, 0.7, ["observation"], standard_normal=True),
    "scaling": lambda: RewardScaling(0.1, 3.0),
    "clip": lambda: ClipTransform(["observation"], low=-0.5, high=0.25),
    "clipping": lambda: RewardClipping(-0.5, 0.5),
    "sign": lambda: SignTransform(["reward"]),
    "copy": lambda: RenameTransform(["observation"], ["same"], create_copy=True),
    "statistics": lambda: VecNormV2(["observation", "reward"], decay=0.9),
    "squeezed": lambda: UnsqueezeTransform(-1, in_keys=["observation"], out_keys=["column"]),
}
INNER_TRANSFORMS = TRANSFORMS | {
    "frames": lambda: CatFrames(2, dim=-1, in_keys=["observation"], out_keys=["frames"]),
    "skip": lambda: FrameSkipTransform(2),
    "noops": lambda: NoopResetEnv(3),
}


def transformed(env, makers):
    return TransformedEnv(env, Compose(*(make() for make in makers))) if makers else env


def build(name, transforms, copies, inner=()):
    """Return an env and its policy; without copies it is in no SerialEnv."""
    make, make_policy, needed = ENVS[name]
    inside = [*needed, *(INNER_TRANSFORMS[key] for key in inner)] if inner else []
    around = [*([] if inner else needed), *(TRANSFORMS[key] for key in transforms)]
    env = SerialEnv(copies, [lambda: transformed(make(), inside)] * copies) if copies else transformed(make(), inside)
    env = transformed(env, around)
    env.set_seed(0)  # the first reset counts in statistics
    return env, make_policy()


def batches(
    monkeypatch,
    mode,
    make,
    seed=0,
    between=lambda collector, number: None,
    *,
    n_batches=BATCHES,
    seeded=True,
    **options,
):
    """Return the batches of a collector, the states of all generators after it, and what it says about its plan."""
    monkeypatch.setenv("SWATH_PLANS", mode)
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    env, policy = make()
    collector = Collector(env, policy, frames_per_batch=FRAMES, total_frames=-1, **options)
    with collector:
        if seeded:
            collector.set_seed(seed)
        collected = []
        for number, batch in zip(range(n_batches), collector, strict=False):
            collected.append(batch)
            between(collector, number)
        states = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
        return collected, states, collector.stats()["plan"]


def form(batch):
    """Return all of a batch in order, and names, devices, shapes, dtypes and bytes."""
    leaves = batch.items(include_nested=True, leaves_only=True)
    entries = [(key, value.dtype, value.shape, value.device, value.numpy().tobytes()) for key, value in leaves]
    return batch.batch_size, batch.names, batch.device, batch["next"].names, entries


def require_equal(monkeypatch, make, expected_plan="on", **options):
    plain, states, _ = batches(monkeypatch, "0", make, **options)
    planned, planned_states, plan = batches(monkeypatch, "1", make, **options)
    assert plan.removeprefix(POLICY_ONLY) == expected_plan
    assert [*map(form, planned)] == [*map(form, plain)]
    assert planned_states == states
    return planned


def require_equal_to_torchrl(monkeypatch, make, seed, options):
    """Compare planned batches with TorchRL's collector, which gives the random numbers of unseeded envs."""
    torch.manual_seed(seed)
    env, policy = make()
    theirs = torchrl.collectors.Collector(env, policy, frames_per_batch=FRAMES, total_frames=-1, **options)
    expected = [batch.clone() for _, batch in zip(range(2), theirs, strict=False)]
    states = torch.get_rng_state().tolist()
    theirs.shutdown()
    planned, planned_states, _ = batches(monkeypatch, "1", make, seed, n_batches=2, seeded=False, **options)
    n_random = options.get("init_random_frames", 0) // FRAMES  # without outputs of the policy, which TorchRL has as 0
    ids = {("collector", "traj_ids")} if options.get("reset_at_each_iter") else set()  # TorchRL leaves the first out
    torchrl_differences.require_equal(planned[n_random:], expected[n_random:], {("collector", "policy_version"), *ids})
    assert [*map(order_of, planned)] == [*map(order_of, expected)]
    assert planned_states[0] == states


def is_served_by_torchrl(transforms):
    """Tell whether TorchRL takes these transforms: no key twice, one counter, and rewards are bounded last."""
    if len({*transforms}) < len(transforms):
        return False
    bounds = [at for at, key in enumerate(transforms) if key in ("clipping", "sign")]
    scaled_after = "scaling" in transforms and bounds and transforms.index("scaling") > bounds[0]
    return not {"counter", "limit"} <= {*transforms} and len(bounds) < 2 and not scaled_after


@settings(
    max_examples=N_PROGRAMS,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from([*ENVS]),
    places=st.tuples(
        st.lists(st.sampled_from([*INNER_TRANSFORMS]), max_size=3), st.lists(st.sampled_from([*TRANSFORMS]), max_size=3)
    ).filter(lambda places: is_served_by_torchrl([*places[0], *places[1]])),
    copies=st.sampled_from([0, 1, 3]),
    seed=st.integers(0, 99),
    options=st.sampled_from(
        [
            {},
            {"init_random_frames": FRAMES},
            {"reset_at_each_iter": True},
            {"set_truncated": True},
            {"compact_obs": True},
            {"exploration_type": "deterministic"},
            {"split_trajs": False, "storing_device": "cpu"},
            {"max_frames_per_traj": 6},
        ]
    ),
)
def test_a_plan_gives_equal_bits(monkeypatch, name, places, copies, seed, options):
    inner, outer = places
    assume("max_frames_per_traj" not in options or not {"counter", "limit"} & {*inner, *outer})
    assume(name != "noisy" or "init" not in {*inner, *outer})
    assume(name != "pictures" or "noops" not in inner)  # masked random actions: no plan
    require_equal(monkeypatch, lambda: build(name, outer, copies, inner), seed=seed, **options)
    if name != "pictures" or "init_random_frames" not in options:  # TorchRL's random actions obey no mask in SerialEnv
        require_equal_to_torchrl(monkeypatch, lambda: build(name, outer, copies, inner), seed, options)


def test_a_limit_of_the_collector_is_counted_by_the_plan(monkeypatch):
    planned = require_equal(monkeypatch, lambda: build("pendulum", ["sum"], 3), max_frames_per_traj=5)
    assert planned[0]["next", "truncated"].sum() == 9
    assert planned[0]["step_count"].max() == 4


def seeded(env):
    env.set_seed(3)
    return env


@pytest.mark.parametrize(
    "norm",
    [
        lambda: VecNormV2(["observation", "reward"], decay=0.9),
        lambda: VecNormV2(["observation"], decay=1.0),
        lambda: VecNorm(["observation", "reward"], decay=0.9),
    ],
    ids=["v2", "v2 without decay", "v1"],
)
def test_statistics_stay_in_the_transform(monkeypatch, norm):
    kept = []

    def make():
        env = TransformedEnv(seeded(GymEnv("Pendulum-v1")), Compose(norm(), RewardSum(), StepCounter(9)))
        return env, linear(3)

    def keep(collector, number):
        loc = collector.env.transform[0].loc
        kept.append({key: loc.get(key).clone() for key in loc.keys()})  # noqa: SIM118  keys of a TensorDict

    require_equal(monkeypatch, make, between=keep)
    for plain, planned in zip(kept[:BATCHES], kept[BATCHES:], strict=True):
        assert plain.keys() == planned.keys()
        assert all(torch.equal(plain[key], planned[key]) for key in plain)
    assert not torch.equal(kept[0]["observation"], kept[1]["observation"])


def recurrent(kind):
    module = kind(input_size=3, hidden_size=5, in_key="observation", out_key="features")
    return TensorDictSequential(module, linear(5, "features"))


def primed(kind, copies, inner, transforms):
    """Return an env whose transforms begin the state of its recurrent policy, and the policy."""
    policy = recurrent(kind)
    transform = lambda: Compose(InitTracker(), policy[0].make_tensordict_primer())
    make = lambda: TransformedEnv(GymEnv("Pendulum-v1"), transform()) if inner else GymEnv("Pendulum-v1")
    env = SerialEnv(copies, make) if copies else make()
    env = transformed(env if inner else TransformedEnv(env, transform()), [TRANSFORMS[name] for name in transforms])
    env.set_seed(0)
    return env, policy


def primer(**options):
    return TensorDictPrimer({"state": Unbounded((2,))}, expand_specs=True, **options)


class Plus(Transform):
    def _apply_transform(self, obs):
        return obs + 1


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, observation):
        self.calls += 1
        return torch.full((*observation.shape[:-1], 1), self.calls % 5 / 10)


def keeps_a_list():
    calls = []

    def act(observation):
        calls.append(observation)
        return observation[..., :1] + len(calls) % 5 / 10

    return TensorDictModule(act, ["observation"], ["action"])


def hands_on_tensors():
    """Return an env of two, where one gets actions as tensors."""
    makers = [lambda flag=flag: GymWrapper(Unusual(), convert_actions_to_numpy=flag) for flag in (True, False)]
    return TransformedEnv(SerialEnv(2, makers), Compose(DoubleToFloat(), CatTensors(JOIN, "observation")))


def halved():
    return TransformedEnv(GymEnv("Pendulum-v1"), RewardScaling(0.0, 0.5))


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (
            lambda: (TransformedEnv(GymEnv("Pendulum-v1"), Plus(["reward"], ["reward"])), linear(3)),
            {},
            "the transform Plus",
        ),
        (lambda: (GymEnv("Pendulum-v1"), lambda observation: observation[..., :1]), {}, "no TensorDict module"),
        (lambda: (GymEnv("Pendulum-v1"), TensorDictModule(Stateful(), ["observation"], ["action"])), {}, "changes"),
        (lambda: (GymEnv("Pendulum-v1"), keeps_a_list()), {}, "refers to a list"),
        (lambda: (hands_on_tensors(), linear(5)), {}, "actions as tensors"),
        (lambda: (GymEnv("Pendulum-v1"), linear(3)), {"check_finite": True}, "check_finite"),
        (lambda: (GymEnv("Pendulum-v1"), linear(3)), {"plans": False}, "plans are off"),
        (
            lambda: (TransformedEnv(cartpole(), VecNormV2(["reward"], reduce_batch_dims=True)), linear(4, n_outputs=2)),
            {},
            "VecNormV2",
        ),
        (
            lambda: (
                SerialEnv(2, lambda: TransformedEnv(GymEnv("Pendulum-v1"), Plus(["reward"], ["reward"]))),
                linear(3),
            ),
            {},
            "the transform Plus",
        ),
        (
            lambda: (TransformedEnv(GymEnv("Pendulum-v1"), RenameTransform(["reward"], ["gain"])), linear(3)),
            {},
            "other rewards",
        ),
        (
            lambda: (TransformedEnv(GymEnv("Pendulum-v1"), primer(random=True)), linear(3)),
            {},
            "TensorDictPrimer has random values",
        ),
        (
            lambda: (TransformedEnv(GymEnv("Pendulum-v1"), primer(default_value=lambda: torch.ones(2))), linear(3)),
            {},
            "default values that are no numbers",
        ),
        (
            lambda: (
                TransformedEnv(
                    primed(LSTMModule, 0, False, [])[0], ClipTransform(["recurrent_state_h"], low=-0.5, high=0.25)
                ),
                recurrent(LSTMModule),
            ),
            {},
            "ClipTransform reads what the policy writes",
        ),
        *(
            (lambda makers=makers: (SerialEnv(2, [*makers]), linear(3)), {}, "several functions make the envs")
            for makers in permutations((lambda: GymEnv("Pendulum-v1"), halved))
        ),
    ],
    ids=[
        "transform",
        "function",
        "stateful policy",
        "stateful function",
        "actions as tensors",
        "check_finite",
        "plans=False",
        "VecNorm that reduces",
        "inner",
        "reward",
        "random primer",
        "primer of a function",
        "state that a transform reads",
        "some with transforms",
        "others with transforms",
    ],
)
def test_without_a_plan_the_reason_is_told(monkeypatch, make, options, reason):
    _, _, plan = batches(monkeypatch, "1", make, **options)
    assert reason in plan
    require_equal(monkeypatch, make, plan.removeprefix(POLICY_ONLY), **options)


def lying(transform, lead):
    """Return the stage of a transform, which adds 1 to the reward of its step 40."""
    stage, calls = HONEST(transform, lead), count()

    def step(root, following):
        stage.step(root, following)
        following["reward"] = following["reward"] + (next(calls) == 40)

    return replace(stage, step=step)


HONEST = transforms.TABLE["RewardScaling"]


def test_a_difference_after_the_first_steps_raises_where_it_is_checked(monkeypatch):
    def make():
        return TransformedEnv(GymEnv("Pendulum-v1"), Compose(RewardScaling(0.0, 0.5))), linear(3)

    monkeypatch.setitem(transforms.TABLE, "RewardScaling", lying)
    batches(monkeypatch, "1", make)
    with pytest.raises(RuntimeError, match=r"step 41: .*'reward' is array.* in a plan, and array.* in TorchRL"):
        batches(monkeypatch, "check", make)


@pytest.mark.parametrize("copies", [0, 2])
def test_checked_steps_change_nothing(monkeypatch, copies):
    def make():
        return build("unusual", ["statistics", "sum"], copies, ["limit", "noops"])

    plain, checked = (batches(monkeypatch, mode, make, init_random_frames=FRAMES) for mode in ("0", "check"))
    assert checked[2] == "on"
    assert [*map(form, checked[0])] == [*map(form, plain[0])]
    assert checked[1] == plain[1]


def test_a_plan_follows_changes_of_the_env(monkeypatch):
    def change(collector, number):
        if number == 0:
            collector.env.append_transform(RewardScaling(0.0, 0.5))
        elif number == 1:
            collector.env.transform[0].max_steps = 5
            collector.env.append_transform(Plus(["reward"], ["reward"]))

    def make():
        env = TransformedEnv(SerialEnv(3, lambda: GymEnv("Pendulum-v1")), Compose(StepCounter(max_steps=9)))
        return env, linear(3)

    planned = require_equal(monkeypatch, make, "the transform Plus is not in the table of plans", between=change)
    assert planned[1]["next", "truncated"].sum() > planned[0]["next", "truncated"].sum() - 3
    assert planned[2]["step_count"].max() < 9


def test_envs_reset_by_hand_begin_at_once(monkeypatch):
    def reset(collector, number):
        collector.reset(index=[1])

    require_equal(monkeypatch, lambda: build("one-hot", ["counter"], 3), between=reset)


class Broken(gym.Env):
    observation_space = action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == FRAMES + 5:
            raise ZeroDivisionError("out of order")
        return np.zeros(1, np.float32), 1.0, False, self.steps % 9 == 0, {}


@pytest.mark.parametrize("plans", ["0", "1"])
def test_an_env_that_raises_is_reported_and_continues(monkeypatch, plans):
    monkeypatch.setenv("SWATH_PLANS", plans)
    with Collector(GymWrapper(Broken()), linear(1), frames_per_batch=FRAMES, total_frames=-1) as collector:
        first = collector.next()
        with pytest.raises(ZeroDivisionError, match="out of order"):
            collector.next()
        second = collector.next()
        assert (collector.stats()["plan"] == "on") == (plans == "1")
        assert collector.stats()["env_errors"] == 1
        assert collector.stats()["fragments_lost"] == 1
    assert first["next", "truncated"].sum() == 5
    assert second["next", "truncated"].sum() in (5, 6)


@pytest.mark.parametrize("kind", [LSTMModule, GRUModule])
@pytest.mark.parametrize("copies", [0, 1, 3])
@pytest.mark.parametrize(
    ("transforms", "options"),
    [
        (["limit"], {}),
        (["init", "limit"], {"init_random_frames": FRAMES}),
        (["limit"], {"compact_obs": True}),
        ([], {"max_frames_per_traj": 6}),
        (["init"], {"reset_at_each_iter": True}),
    ],
    ids=str,
)
def test_recurrent_state_that_the_collector_supplies(monkeypatch, kind, copies, transforms, options):
    make = lambda: (build("pendulum", transforms, copies)[0], recurrent(kind))
    require_equal(monkeypatch, make, **options)


@pytest.mark.parametrize("kind", [LSTMModule, GRUModule])
@pytest.mark.parametrize(("copies", "inner"), [(0, False), (1, True), (3, False), (3, True)])
@pytest.mark.parametrize(
    ("transforms", "options"),
    [
        (["limit", "sum"], {}),
        (["limit"], {"init_random_frames": FRAMES}),
        (["limit"], {"compact_obs": True}),
        ([], {"max_frames_per_traj": 6}),
        ([], {"reset_at_each_iter": True}),
    ],
    ids=str,
)
def test_recurrent_state_that_a_transform_begins(monkeypatch, kind, copies, inner, transforms, options):
    make = lambda: primed(kind, copies, inner, transforms)
    require_equal(monkeypatch, make, **options)
    if "compact_obs" not in options:  # TorchRL's leaves out less than its documentation says: it keeps the state
        require_equal_to_torchrl(monkeypatch, make, 0, options)
    batches(monkeypatch, "check", make, **options)


def test_recurrent_state_goes_on_where_a_plan_ends(monkeypatch):
    def change(collector, number):
        if number == 1:
            collector.env.append_transform(Plus(["reward"], ["reward"]))

    make = lambda: (build("pendulum", ["limit"], 3)[0], recurrent(LSTMModule))
    require_equal(monkeypatch, make, "the transform Plus is not in the table of plans", between=change)


@pytest.mark.parametrize("copies", [0, 3])
def test_private_entries_go_on_where_a_plan_ends(monkeypatch, copies):
    def change(collector, number):
        if number == 1:
            collector.env.append_transform(Plus(["reward"], ["reward"]))

    make = lambda: build("noisy", ["limit"], copies)
    planned = require_equal(monkeypatch, make, "the transform Plus is not in the table of plans", between=change)
    require_equal(monkeypatch, make)
    assert not any("_ou_steps" in batch.keys() for batch in planned)  # noqa: SIM118


@pytest.mark.parametrize("backend", ["process", "inline"])
def test_workers_elsewhere_have_plans(monkeypatch, fork_server, backend):
    def collect(mode):
        monkeypatch.setenv("SWATH_PLANS", mode)
        torch.manual_seed(0)
        policy = sampling(4, torch.distributions.OneHotCategorical)
        makers = [lambda: TransformedEnv(SerialEnv(2, cartpole), Compose(StepCounter(), RewardSum()))] * 2
        options = {"frames_per_batch": 2 * FRAMES, "total_frames": -1, "backend": backend, "seed": 5}
        with MultiSyncCollector(makers, policy, **options) as collector:
            return [form(collector.next()) for _ in range(BATCHES)], collector.stats()["plan"]

    plain, _ = collect("0")
    planned, plan = collect("1")
    assert plan == "on"
    assert planned == plain
