"""An evaluation of a TorchRL env with a plan has the episodes that TorchRL's own step gives, bit for bit."""

import pytest
import torch
from test_torchrl_plans import JOIN, Plus, Unusual, cartpole, form, linear, noisy, recurrent, sampling
from torchrl.envs import (
    CatTensors,
    Compose,
    DoubleToFloat,
    GymEnv,
    GymWrapper,
    InitTracker,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    VecNormV2,
)
from torchrl.modules import LSTMModule

from swath.evaluation.evaluate_policy import play_episodes
from swath.evaluation.options import EvaluatorOptions
from swath.evaluators import Evaluator, evaluate_policy
from swath.rollout.hosts.plan import PlanHost

MODES = ["0", "1", "check"]


def one_hot():
    return sampling(4, torch.distributions.OneHotCategorical)


def counted():
    return TransformedEnv(cartpole(), Compose(StepCounter(30), RewardSum()))


def unusual():
    chain = Compose(DoubleToFloat(), CatTensors(JOIN, "observation"), VecNormV2(["observation"]))
    env = TransformedEnv(GymWrapper(Unusual()), chain)
    env.set_seed(0)
    env.rollout(20)
    return env


def several():
    return TransformedEnv(SerialEnv(3, lambda: GymEnv("Pendulum-v1", frame_skip=50)), StepCounter())


def short():
    return TransformedEnv(GymEnv("Pendulum-v1", frame_skip=10), Compose(InitTracker(), StepCounter(9)))


def primed():
    return TransformedEnv(short(), recurrent(LSTMModule)[0].make_tensordict_primer())


def primed_batch():
    return TransformedEnv(SerialEnv(3, short), recurrent(LSTMModule)[0].make_tensordict_primer())


def lstm():
    return recurrent(LSTMModule)


PROGRAMS = {
    "single": (cartpole, one_hot, {}),
    "transformed": (counted, one_hot, {"num_envs": 3}),
    "statistics": (unusual, lambda: linear(5), {"num_envs": 2}),
    "limit": (cartpole, one_hot, {"num_envs": 4, "max_steps": 9}),
    "batch": (several, lambda: linear(3), {"num_trajectories": 5}),
    "state": (short, lstm, {"num_envs": 2}),
    "state of a transform": (primed, lstm, {"num_envs": 2}),
    "state of a batch": (primed_batch, lstm, {}),
    "noise": (short, noisy, {"num_envs": 2}),
}


@pytest.mark.parametrize("exploration", ["deterministic", "random"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_episodes_are_equal_with_a_plan(monkeypatch, name, exploration):
    def play(mode):
        monkeypatch.setenv("SWATH_PLANS", mode)
        env, policy, options = PROGRAMS[name]
        torch.manual_seed(0)
        options = {"num_trajectories": 6, "exploration_type": exploration, **options}
        runner = play_episodes(EvaluatorOptions(env, policy(), **options))
        return runner.rows, torch.rand(1).item(), isinstance(runner.host, PlanHost)

    plain, planned, checked = map(play, MODES)
    differing = [outcome for outcome in (planned, checked) if outcome[:2] != plain[:2]]
    assert not differing
    assert [plain[2], planned[2], checked[2]] == [False, True, True]


@pytest.mark.parametrize("name", PROGRAMS)
def test_trajectories_are_equal_with_a_plan_in_a_thread(monkeypatch, name):
    def evaluate(mode):
        monkeypatch.setenv("SWATH_PLANS", mode)
        env, policy, options = PROGRAMS[name]
        torch.manual_seed(0)
        collected = []
        options = {"num_trajectories": 6, "metrics_fn": lambda steps: collected.append(steps) or {}, **options}
        with Evaluator(env, policy(), **options) as evaluator:
            results = [evaluator.evaluate().returns.tolist() for _ in range(2)]
        return results, torch.rand(1).item(), [form(steps)[-1] for steps in collected]

    plain, planned = evaluate("0"), evaluate("1")
    assert planned[:2] == plain[:2]
    pairs = [pair for entries in zip(plain[2], planned[2], strict=True) for pair in zip(*entries, strict=True)]
    assert not [(first[0], second[0]) for first, second in pairs if first != second]


def test_a_callback_sees_tensordicts(monkeypatch):
    def observe(mode):
        monkeypatch.setenv("SWATH_PLANS", mode)
        torch.manual_seed(0)
        observations = []
        evaluate_policy(
            one_hot(),
            counted,
            2,
            callback=lambda variables, _: observations.append(variables["observations"]["observation"]),
        )
        return torch.stack(observations).tolist()

    assert observe("1") == observe("0")


def test_an_env_that_changes_between_evaluations_is_evaluated_as_it_is(monkeypatch):
    def evaluate(mode):
        monkeypatch.setenv("SWATH_PLANS", mode)
        torch.manual_seed(0)
        env = counted()
        with Evaluator(env, one_hot(), num_trajectories=2) as evaluator:
            first = evaluator.evaluate().returns.tolist()
            env.append_transform(Plus(["reward"], ["reward"]))
            return first, evaluator.evaluate().returns.tolist()

    assert evaluate("1") == evaluate("0")
