"""A ParallelEnv with a plan steps in env processes, and gives the batches of TorchRL's own steps, bit for bit."""

import os
import signal
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Unbounded
from torchrl.envs import (
    CatTensors,
    Compose,
    DoubleToFloat,
    EnvCreator,
    GymEnv,
    GymWrapper,
    InitTracker,
    ParallelEnv,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    TransformedEnv,
    VecNormV2,
)
from torchrl.modules import ProbabilisticActor
from torchrl_toys import Counting

from swath import Collector, MultiSyncCollector
from swath.errors import EnvProcessLost
from swath.rollout.hosts.env_server import Processes
from swath.rollout.hosts.parallel import ProcessHost
from swath.rollout.hosts.parallel_plan import ParallelPlan, plan_of_share
from swath.rollout.plans import VARIABLE, NoPlan, plans_mode
from traces import left, require_no_more_than

FRAMES, BATCHES, N_ENVS = 60, 3, 3


@pytest.fixture(autouse=True)
def plans_are_on(monkeypatch):
    """Switch plans on, also in a run of all tests without plans."""
    if plans_mode() == "off":
        monkeypatch.setenv(VARIABLE, "1")


class Mixed(gym.Env):
    """Two entries, float64 rewards, short episodes of random lengths."""

    observation_space = gym.spaces.Dict(
        position=gym.spaces.Box(-1, 1, (2,), np.float64), speed=gym.spaces.Box(-1, 1, (1,), np.float32)
    )
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        return {"position": self.np_random.random(2), "speed": self.np_random.random(1, np.float32)}

    def step(self, action):
        ends = self.np_random.random(2) < 0.1
        return self.observe(), float(self.np_random.normal() + action[0]), bool(ends[0]), bool(ends[1]), {}


class Fails(gym.Wrapper):
    """Raises in the fifth step."""

    n_steps = 0

    def step(self, action):
        self.n_steps += 1
        if self.n_steps == 5:
            raise FloatingPointError("overflow in the simulator")
        return super().step(action)


class Counted(gym.Wrapper):
    """Observes how many episodes have begun, and ends each after 9 steps."""

    def __init__(self, env):
        super().__init__(env)
        self.n_episodes = self.n_steps = 0

    def reset(self, **options):
        self.n_episodes, self.n_steps = self.n_episodes + 1, 0
        observation, info = super().reset(**options)
        return observation + self.n_episodes, info

    def step(self, action):
        self.n_steps += 1
        observation, reward, *_, info = super().step(action)
        return observation + self.n_episodes, reward, False, self.n_steps == 9, info


class Dies(gym.Wrapper):
    """Kills its process in the fifth step, unless a file says that it has done so."""

    def __init__(self, env, file):
        super().__init__(env)
        self.file, self.n_steps = file, 0

    def step(self, action):
        self.n_steps += 1
        if self.n_steps == 5 and not self.file.exists():
            self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def pendulum(limit=7):
    return TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(limit))


def mixed():
    return GymWrapper(Mixed())


def failing():
    return GymWrapper(Fails(gym.make("Pendulum-v1")))


def dying(file):
    return GymWrapper(Dies(gym.make("Pendulum-v1"), file))


def cartpole():
    return GymEnv("CartPole-v1")


def linear(n_inputs=3):
    return TensorDictModule(nn.Linear(n_inputs, 1), ["observation"], ["action"])


def choosing():
    return ProbabilisticActor(
        TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.OneHotCategorical,
        return_log_prob=True,
    )


def remember(observation, before):
    first = observation.sum(-1, keepdim=True)
    trace = first if before is None else first + before / 2
    return trace, trace.tanh()


def remembering():
    return TensorDictModule(remember, in_keys=["observation", "trace"], out_keys=["trace", "action"])


PROGRAMS = {
    "inner and outer": (pendulum, lambda: [RewardSum(), InitTracker(), RewardScaling(0.5, 2.0)], linear),
    "bare": (cartpole, list, choosing),
    "joined": (mixed, lambda: [DoubleToFloat(), CatTensors(["position", "speed"], "observation")], linear),
    "creator": (EnvCreator(pendulum), lambda: [RewardSum()], linear),
    "no plan for the policy": (pendulum, lambda: [RewardSum()], remembering),
}


def normalized():
    return TransformedEnv(cartpole(), VecNormV2(["observation"]))


def batch_of(kind, make, transforms, n=N_ENVS):
    env = kind(n, make)
    return TransformedEnv(env, Compose(*transforms())) if transforms() else env


def bits(batch):
    leaves = batch.items(include_nested=True, leaves_only=True)
    entries = [(key, value.dtype, value.shape, value.device, value.numpy().tobytes()) for key, value in leaves]
    return batch.batch_size, batch.names, batch.device, entries


def ignore(collector):
    """Change nothing."""


def collect(env, make_policy, *, kind=Collector, begin=ignore, between=ignore, **options):
    """Return batches and a later draw from torch's generator, and the plan."""
    torch.manual_seed(0)
    options = {"frames_per_batch": FRAMES, "total_frames": -1, "seed": 5, **options}
    with kind(env, make_policy(), **options) as collector:
        begin(collector)
        collected = []
        for _ in range(BATCHES):
            collected.append(collector.next())
            between(collector)
        return [*map(bits, collected), torch.rand(1).item()], collector.stats()["plan"]


def require_equal(monkeypatch, make, transforms, make_policy, **options):
    """Compare with TorchRL's own steps in this process; return what the collector says of the plan."""
    monkeypatch.setenv("SWATH_PLANS", "0")
    plain, _ = collect(batch_of(SerialEnv, make, transforms), make_policy, **options)
    monkeypatch.setenv("SWATH_PLANS", "1")
    env = batch_of(ParallelEnv, make, transforms)
    planned, plan = collect(env, make_policy, **options)
    assert planned == plain
    return plan


@pytest.mark.parametrize("program", PROGRAMS)
def test_batches_are_equal(monkeypatch, fork_server, program):
    plan = require_equal(monkeypatch, *PROGRAMS[program])
    assert (plan == "on") == (program != "no plan for the policy")


@pytest.mark.parametrize(
    "options",
    [
        {"init_random_frames": FRAMES},
        {"reset_at_each_iter": True},
        {"set_truncated": True},
        {"check_finite": True},
        {"begin": lambda collector: collector.set_seed(2, static_seed=True)},
    ],
    ids=["random", "reset", "truncated", "finite", "static seed"],
)
def test_batches_are_equal_with_options(monkeypatch, fork_server, options):
    require_equal(monkeypatch, *PROGRAMS["inner and outer"], **options)


def started(make, transforms):
    """Return a ParallelEnv that is seeded before it is transformed, as in TorchRL's programs."""
    env = ParallelEnv(2, make, mp_start_method="fork")
    env.set_seed(1)
    return TransformedEnv(env, Compose(*transforms()))


def test_envs_that_were_started_are_replaced_where_they_are_seeded(monkeypatch, fork_server):
    make, transforms, make_policy = PROGRAMS["inner and outer"]
    env = started(make, transforms)
    batches, plan = collect(env, make_policy, seed=None, begin=lambda collector: collector.set_seed(5))
    assert plan == "on"
    assert env.is_closed
    monkeypatch.setenv("SWATH_PLANS", "0")
    assert batches == collect(batch_of(SerialEnv, make, transforms, 2), make_policy)[0]
    assert batches == collect(started(make, transforms), make_policy)[0]


def counted():
    return GymWrapper(Counted(gym.make("Pendulum-v1")))


def test_envs_that_were_started_and_not_seeded_since_are_stepped_by_torchrl(monkeypatch, fork_server):
    batches, plan = collect(started(pendulum, list), linear, seed=None)
    assert plan.endswith("other code has started the ParallelEnv, and its envs were not seeded since")
    monkeypatch.setenv("SWATH_PLANS", "0")
    assert batches == collect(started(pendulum, list), linear, seed=None)[0]


def test_started_envs_whose_seeds_do_not_decide_the_episode_are_stepped_by_torchrl(fork_server):
    env = started(counted, list)
    batches, plan = collect(env, linear)
    assert "the first 'observation' is" in plan
    assert len(batches) == BATCHES + 1


def test_envs_of_several_functions_are_equal(monkeypatch, fork_server):
    makes = [partial(pendulum, 4), partial(pendulum, 5), pendulum]
    assert require_equal(monkeypatch, makes, lambda: [RewardSum()], linear) == "on"


def test_workers_elsewhere_have_the_plan(fork_server):
    make, transforms, make_policy = PROGRAMS["inner and outer"]
    env = partial(batch_of, ParallelEnv, make, transforms)
    batches, plan = collect([env], make_policy, kind=MultiSyncCollector, cat_results=0)
    assert plan == "on"
    assert batches == collect(env, make_policy)[0]


def test_torchrl_starts_no_process(fork_server):
    env = ParallelEnv(2, cartpole)
    with Collector(env, choosing(), frames_per_batch=FRAMES) as collector:
        collector.next()
        assert collector.env is env
    assert env.is_closed


def test_a_changed_setting_counts_from_the_next_batch_on(monkeypatch, fork_server):
    def change(collector):
        collector.env.transform[2].scale.fill_(3.0)
        collector.env.transform[2].loc.fill_(-1.0)

    assert require_equal(monkeypatch, *PROGRAMS["inner and outer"], between=change) == "on"


@pytest.mark.parametrize("make_policy", [linear, remembering])
def test_other_transforms_are_refused_while_it_steps(fork_server, make_policy):
    env = batch_of(ParallelEnv, pendulum, lambda: [RewardSum()])
    with Collector(env, make_policy(), frames_per_batch=FRAMES, total_frames=-1) as collector:
        collector.next()
        env.append_transform(InitTracker())
        with pytest.raises(RuntimeError, match=r"has changed since its envs began .* pass plans=False"):
            collector.next()


def test_an_exception_of_an_env_has_its_own_type(fork_server):
    with (
        Collector(ParallelEnv(2, failing), linear(), frames_per_batch=FRAMES) as collector,
        pytest.raises(FloatingPointError, match="overflow in the simulator"),
    ):
        collector.next()


@pytest.mark.parametrize("close_env", [True, False])
def test_shutdown_ends_the_processes(fork_server, close_env):
    before, env = left(), ParallelEnv(2, cartpole)
    for _ in range(2):
        collector = Collector(env, choosing(), frames_per_batch=FRAMES)
        collector.next()
        collector.shutdown(close_env=close_env)
        del collector  # its memory is shared
    require_no_more_than(before)


def primer():
    return TensorDictPrimer({"state": Unbounded((2,))}, expand_specs=True)


def primed():
    return TransformedEnv(cartpole(), primer())


@pytest.mark.parametrize(
    ("make", "transforms", "reason"),
    [
        (Counting, list, "Counting is no GymEnv"),
        (cartpole, lambda: [VecNormV2(["observation"])], "TorchRL begins the episodes"),
        (normalized, list, "have a state_dict"),
        (cartpole, lambda: [primer()], "a TensorDictPrimer"),
        (primed, list, "a TensorDictPrimer"),
    ],
    ids=["env", "outer", "inner", "state", "inner state"],
)
def test_reasons_for_no_plan(make, transforms, reason):
    with pytest.raises(NoPlan, match=reason):
        ParallelPlan(batch_of(ParallelEnv, make, transforms, 2), autoresets=True)


def share_of(make):
    return plan_of_share(SerialEnv(1, make))


def summed():
    return TransformedEnv(pendulum(), RewardSum())


def test_processes_whose_envs_have_other_entries_are_refused(fork_server):
    with pytest.raises(ValueError, match=r"must agree in their entries: env process 1 has .*episode_reward"):
        ProcessHost([partial(share_of, pendulum), partial(share_of, summed)], Processes(2))


@pytest.mark.parametrize("number", [1, 2])
def test_env_processes_give_the_batches_of_one_process(monkeypatch, fork_server, number):
    options = {"envs_per_worker": N_ENVS, "max_frames_per_traj": 6}
    monkeypatch.setenv("SWATH_PLANS", "0")
    plain, _ = collect(cartpole, choosing, **options)
    monkeypatch.setenv("SWATH_PLANS", "1")
    planned, plan = collect(cartpole, choosing, env_processes=number, **options)
    assert planned == plain
    assert plan == "on"


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (Counting, {"envs_per_worker": 2}, TypeError, "these have none: the SerialEnv has other envs"),
        (cartpole, {"envs_per_worker": 2, "plans": False}, TypeError, "these have none: plans are off"),
        (partial(SerialEnv, 2, cartpole), {}, ValueError, "say with envs_per_worker how many"),
        (cartpole, {"envs_per_worker": 2, "overlap": True}, ValueError, "these are others; leave it out"),
    ],
    ids=["no plan", "plans off", "batch", "overlap"],
)
def test_env_processes_refuse_other_envs(fork_server, make, options, error, message):
    with pytest.raises(error, match=message):
        Collector(make, linear(4), frames_per_batch=FRAMES, env_processes=2, **options)


def test_a_killed_process_is_an_exception_and_the_next_draw_has_another(fork_server, tmp_path):
    env = TransformedEnv(ParallelEnv(2, partial(dying, tmp_path / "dead")), StepCounter())
    with Collector(env, linear(), frames_per_batch=FRAMES, total_frames=-1, seed=1) as collector:
        with pytest.raises(EnvProcessLost, match="was killed by SIGKILL"):
            collector.next()
        batch = collector.next()
        assert batch["step_count"][..., 0].tolist() == [[*range(FRAMES // 2)]] * 2
