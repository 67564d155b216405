"""A TensorDict policy has a plan also where its TorchRL env has none, and gives the same batches, bit for bit."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.envs import GymEnv, InitTracker, TransformedEnv
from torchrl.modules import AdditiveGaussianModule, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl_toys import Counting, NestedKeys

from swath import Collector, MultiSyncCollector

FRAMES, BATCHES, ON = (
    60,
    3,
    "on for the policy only: Counting is no GymEnv, GymWrapper, SerialEnv or ParallelEnv",
)


def gaussian(key="observation", action="action", n_actions=1):
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2 * n_actions), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(net, [key], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        out_keys=[action],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )


def with_value():
    return TensorDictSequential(gaussian(), ValueOperator(nn.Linear(1, 1), in_keys=["observation"]))


def noisy():
    actor = TensorDictModule(nn.Linear(1, 1), ["observation"], ["action"])
    spec = Counting((3,)).action_spec
    return TensorDictSequential(actor, AdditiveGaussianModule(spec, annealing_num_steps=50))


def nested():
    to_float = TensorDictModule(lambda clock: clock.float(), [("sensors", "clock")], ["time"])
    return TensorDictSequential(to_float, gaussian("time", ("control", "motor"), 2))


PROGRAMS = {
    "batched": (lambda: Counting((3,)), gaussian),
    "single": (Counting, gaussian),
    "several": (lambda: [Counting], with_value),
    "value": (lambda: Counting((2, 2)), with_value),
    "noise": (lambda: Counting((3,)), noisy),
    "nested": (lambda: NestedKeys((3,)), nested),
    "transformed": (lambda: TransformedEnv(Counting((3,)), InitTracker()), gaussian),
}


def batches(monkeypatch, mode, make_env, make_policy, between=lambda policy: None, **options):
    monkeypatch.setenv("SWATH_PLANS", mode)
    torch.manual_seed(0)
    policy = make_policy()
    with Collector(make_env(), policy, frames_per_batch=FRAMES, total_frames=-1, **options) as collector:
        collected = []
        for _ in range(BATCHES):
            collected.append(collector.next())
            between(policy)
        return collected, torch.rand(1).item(), collector.stats()["plan"]


def bits(batch):
    leaves = batch.items(include_nested=True, leaves_only=True)
    entries = [(key, value.dtype, value.shape, value.device, value.numpy().tobytes()) for key, value in leaves]
    groups = {key: td.batch_size for key, td in batch.items(include_nested=True) if isinstance(td, TensorDict)}
    return batch.batch_size, batch.names, batch.device, groups, entries


def require_equal(monkeypatch, *program, mode="1", **options):
    plain, plain_draw, plan = batches(monkeypatch, "0", *program, **options)
    assert plan == "plans are off"
    planned, draw, plan = batches(monkeypatch, mode, *program, **options)
    assert [*map(bits, planned)] == [*map(bits, plain)]
    assert draw == plain_draw
    return plan


@pytest.mark.parametrize("mode", ["1", "check"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_batches_are_equal(monkeypatch, program, mode):
    assert require_equal(monkeypatch, *PROGRAMS[program], mode=mode).startswith("on for the policy only: ")


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"init_random_frames": 90},
        {"exploration_type": "DETERMINISTIC"},
        {"max_frames_per_traj": 2},
        {"check_finite": True},
        {"policy_device": "cpu"},
        {"envs_per_worker": 3},
    ],
    ids=str,
)
def test_batches_are_equal_with_options(monkeypatch, options):
    make_env = Counting if "envs_per_worker" in options else lambda: Counting((3,))
    require_equal(monkeypatch, make_env, with_value, **options)


def test_a_changed_policy_gets_another_plan(monkeypatch):
    def add_layer(policy):
        policy.module[0].module = nn.Sequential(policy.module[0].module, nn.Identity())

    def add_hook(policy):
        policy.register_forward_hook(lambda module, args, output: output.set("action", output["action"] * 0 + 0.25))

    assert require_equal(monkeypatch, lambda: Counting((3,)), gaussian, between=add_layer) == ON
    assert require_equal(monkeypatch, lambda: Counting((3,)), gaussian, between=add_hook) != ON


class Renames(TensorDictModuleBase):
    """Writes an action, and replaces the observation, which it does not declare."""

    in_keys, out_keys = ["observation"], ["action"]

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1)

    def forward(self, tensordict):
        tensordict["action"] = self.net(tensordict["observation"])
        tensordict["observation"] = tensordict["observation"] + 100
        return tensordict


def test_a_policy_that_replaces_an_entry_of_the_env_is_called_as_it_is(monkeypatch):
    def replaces():
        return TensorDictSequential(TensorDictModule(nn.Linear(1, 1), ["observation"], ["first"]), Renames())

    assert not require_equal(monkeypatch, lambda: Counting((3,)), replaces).startswith("on")


class Remembers(TensorDictModuleBase):
    """Reads its output of the step before, which it does not list among its inputs."""

    in_keys, out_keys = ["first"], ["trace", "action"]

    def forward(self, tensordict):
        before = tensordict.get("trace", None)
        tensordict["trace"] = tensordict["first"] if before is None else tensordict["first"] + before / 2
        return tensordict.set("action", tensordict["trace"].tanh())


def remember(first, before):
    trace = first if before is None else first + before / 2
    return trace, trace.tanh()


LISTED = TensorDictModule(remember, in_keys=["first", "trace"], out_keys=["trace", "action"])


@pytest.mark.parametrize("make", [Remembers, lambda: LISTED], ids=["unlisted", "listed"])
def test_a_policy_that_reads_its_last_output_is_called_as_it_is(monkeypatch, make):
    def remembering(n_inputs=1):
        return TensorDictSequential(TensorDictModule(nn.Linear(n_inputs, 1), ["observation"], ["first"]), make())

    assert not require_equal(monkeypatch, lambda: Counting((3,)), remembering).startswith("on")
    plan = require_equal(monkeypatch, lambda: GymEnv("Pendulum-v1"), lambda: remembering(3), seed=1)
    assert not plan.startswith("on")


def test_workers_elsewhere_have_plans(monkeypatch, fork_server):
    def collect(mode):
        monkeypatch.setenv("SWATH_PLANS", mode)
        torch.manual_seed(0)
        options = {"frames_per_batch": FRAMES, "total_frames": -1, "seed": 5}
        with MultiSyncCollector([lambda: Counting((3,))] * 2, gaussian(), **options) as collector:
            return [bits(collector.next()) for _ in range(BATCHES)], collector.stats()["plan"]

    plain, _ = collect("0")
    planned, plan = collect("1")
    assert planned == plain
    assert plan == ON
