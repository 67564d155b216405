"""Results of `Evaluator`: keys and types, the order of outcomes, `metrics_fn`, status and end."""

import gc
import threading
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from eval_mischief import Mischief
from eval_mischief import evaluator as unruly
from evaluator_toys import PLACES, Named, evaluate_once, evaluated, evaluator
from tensordict import TensorDict
from torch import nn
from uneven_env import Shifted, UnevenEnv, played

from plain import plain
from swath import Collector
from swath.evaluators import Evaluator
from toys import end

pytestmark = pytest.mark.usefixtures("fork_server")

NUMBERS = {
    **dict.fromkeys(("reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"), float),
    **dict.fromkeys(("reward_ci_low", "reward_ci_high", "episode_length", "duration_s", "fps"), float),
    **dict.fromkeys(("num_episodes", "frames", "step", "policy_version"), int),
}


def kinds_in(result):
    kinds = {key: value.dtype if isinstance(value, torch.Tensor) else type(value) for key, value in result.items()}
    return {key.removeprefix("eval/"): kind for key, kind in kinds.items()}


def test_results_have_these_keys_and_types():
    def measure(td):
        return {"rows": len(td), "on": True, "sum": td["next", "reward"].sum()}

    assert kinds_in(evaluated()) == NUMBERS
    everything = {"per_episode": True, "record_video": 1, "metrics_fn": measure}
    assert kinds_in(evaluated(env="uneven_env:UnevenEnv-v0", **everything)) == {
        **NUMBERS,
        "episode_rewards": torch.float64,
        "episode_lengths": torch.int64,
        "video": torch.uint8,
        "rows": int,
        "on": bool,
        "sum": torch.float32,
    }


# Reading ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_outcomes_are_read_once_in_their_order_errors_too(place):
    with evaluator(place, busy_policy="queue") as ev:
        assert ev.poll() is ev.wait() is None
        assert ev.trigger_eval(step=5)
        assert ev.trigger_eval(nn.Linear(2, 2), step=6)
        assert ev.trigger_eval(step=7)
        assert ev.evaluate(step=8).step == 8
        assert not ev.pending
        assert ev.poll().step == 5
        with pytest.raises(KeyError, match="missing"):
            ev.poll()
        assert ev.wait().step == 7
        assert ev.poll() is ev.poll(None) is ev.wait() is None
        stats = ev.stats()
        assert [stats[name] for name in ("accepted", "completed", "errors", "unread")] == [4, 3, 1, 0]


def test_requests_without_a_step_are_counted_and_refused_ones_are_not():
    with evaluator(busy_policy="queue") as ev:
        for step in (None, np.int64(40), None):
            ev.trigger_eval(step=step)
        for wrong in (1.5, "3", torch.tensor(1.5)):  # the last has __index__, and refuses it
            for ask in (ev.trigger_eval, ev.evaluate):
                with pytest.raises(TypeError, match="integer"):
                    ask(Shifted(), step=wrong)
        with pytest.raises(TypeError, match="weights are of type int"):
            ev.trigger_eval(5)
        ev.trigger_eval()
        results = [ev.wait() for _ in range(4)]
    assert [(result.step, result["eval/step"]) for result in results] == [(0, 0), (40, 40), (1, 1), (2, 2)]


@pytest.mark.parametrize("place", PLACES)
def test_weights_come_in_every_form(place):
    policy = Shifted(1)
    forms = [policy, policy.state_dict(), TensorDict.from_module(policy), Evaluator.extract_weights(policy)]
    with evaluator(place) as ev:
        results = [*map(ev.evaluate, forms), ev.evaluate(weights_dict={"policy": policy})]
        results += [ev.evaluate(), ev.evaluate(weights_dict={})]
    for result in results:
        assert result.returns.tolist() == [played(seed, 1)[0] for seed in result.seeds], result.step
    assert results[-1]["eval/policy_version"] == 5


@pytest.mark.parametrize("place", PLACES)
def test_on_result_gets_flat_tensordicts_on_the_cpu(place):
    received = []
    result = evaluated(place, on_result=received.append, per_episode=True)
    assert [td.batch_size for td in received] == [torch.Size([])]
    assert set(received[0].keys()) == set(result)
    for key, value in result.items():
        tensor = received[0][key]
        assert tensor.dtype == {float: torch.float64, int: torch.int64}.get(type(value), tensor.dtype)
        assert tensor.tolist() == (value.tolist() if isinstance(value, torch.Tensor) else value)


# metrics_fn ---------------------------------------------------------------------------------------------------------


def trajectories(place="thread", **options):
    """Return the trajectories of `metrics_fn`, and the result."""
    received = []
    result = evaluated(place, metrics_fn=lambda td: received.append(td) or {}, **options)
    assert len(received) == 1
    return received[0], result


@pytest.mark.parametrize(
    ("place", "layout"),
    [("thread", {}), ("thread", {"num_envs": 3}), ("process", {"num_envs": 2, "num_workers": 2})],
    ids=plain,
)
def test_trajectories_are_all_episodes_in_order(place, layout):
    td, result = trajectories(place, max_steps=30, num_trajectories=9, **layout)
    mask, lengths = td["collector", "mask"], torch.from_numpy(result.lengths)
    assert td.batch_size == (9, 30)
    assert td.device == torch.device("cpu")
    assert mask.equal(torch.arange(30) < lengths[:, None])
    assert td["collector", "traj_ids"][:, 0].tolist() == [*range(9)]
    assert (td["next", "reward"].squeeze(-1) * mask).sum(1).tolist() == result.returns.tolist()
    assert td["observation"][..., 1][mask].equal(torch.arange(30).expand(9, 30)[mask])
    assert td["next", "observation"][..., 1][mask].equal(1 + torch.arange(30).expand(9, 30)[mask])
    for flag in ("terminated", "truncated"):
        lasts = td["next", flag].squeeze(-1)[torch.arange(9), lengths - 1]
        assert lasts.tolist() == getattr(result, flag).tolist()
        assert int(td["next", flag].sum()) == int(lasts.sum())
    assert result.truncated.any()
    assert (td["next", "done"] == td["next", "terminated"] | td["next", "truncated"]).all()


def test_trajectories_have_the_entries_of_a_collector():
    collector = Collector(Named, Shifted(), frames_per_batch=8, trajs_per_batch=3)
    batch = next(iter(collector))
    collector.shutdown()
    td, _ = trajectories()
    keys = batch.keys(include_nested=True, leaves_only=True)
    assert {key: batch[key].dtype for key in keys} == {
        key: td[key].dtype for key in td.keys(include_nested=True, leaves_only=True)
    }
    assert {key: batch[key].shape[2:] for key in keys} == {key: td[key].shape[2:] for key in keys}


def raising(td):
    raise ZeroDivisionError("nothing to divide")


@pytest.mark.parametrize(
    ("measure", "kind", "text"),
    [
        (raising, ZeroDivisionError, "nothing to divide"),
        (lambda td: {"reward": 1.0}, ValueError, "'reward', which results have already"),
        (lambda td: {"video": 1.0}, ValueError, "'video'"),
        (lambda td: {"name": "x"}, TypeError, "name='x'"),
        (lambda td: {3: 1.0}, TypeError, "names are strings"),
        (lambda td: 3.0, TypeError, "not iterable"),
    ],
    ids=plain,
)
def test_a_failure_of_metrics_fn_is_the_outcome_of_that_evaluation(measure, kind, text):
    wrong = [True]

    def metrics(td):
        return measure(td) if wrong.pop() else {"fine": 1}

    with evaluator(metrics_fn=metrics) as ev:
        ev.trigger_eval()
        with pytest.raises(kind, match=text):
            ev.wait()
        wrong.append(False)
        assert ev.evaluate()["eval/fine"] == 1


def test_on_result_cannot_wait_and_its_evaluation_is_pending():
    states = []

    def on_result(td):
        for wait in (ev.evaluate, ev.wait, partial(ev.wait, 1.0), partial(ev.poll, None)):
            with pytest.raises(RuntimeError, match=r"would wait for itself; use trigger_eval"):
                wait()
        if not states:  # later it could read its caller's result
            states.append((ev.poll(), ev.pending, ev.trigger_eval()))

    with evaluator(on_result=on_result, busy_policy="queue") as ev:
        ev.trigger_eval()
        assert [ev.wait().step, ev.wait().step, ev.wait()] == [0, 1, None]
        assert ev.last_callback_error is None
    assert states == [(None, True, True)]


def test_an_on_result_that_takes_long_is_warned_of_once(monkeypatch):
    monkeypatch.setattr("swath.evaluation.reporting.LONG_S", 0.0)
    with evaluator(on_result=lambda td: None) as ev:
        with pytest.warns(UserWarning, match="no evaluation begins") as warned:
            [ev.evaluate() for _ in range(2)]
        assert len(warned) == 1


@pytest.fixture
def mischief(tmp_path):
    """Block the first evaluation in its third step."""
    mischief = Mischief.at(tmp_path)
    mischief.order("step", "hang")
    return mischief


def test_its_repr_has_the_step_and_the_progress(mischief):
    with unruly(mischief, busy_policy="queue") as ev:
        assert repr(ev) == "<Evaluator thread 1 worker: 0 waiting, 0 unread, 0 done>"
        ev.trigger_eval(step=40)
        ev.trigger_eval()
        mischief.gate.await_arrival()
        assert repr(ev) == "<Evaluator thread 1 worker: step 40, 0 of 6 episodes; 1 waiting, 0 unread, 0 done>"
        mischief.gate.open()
        ev.wait()
        ev.wait()
    assert repr(ev) == "<Evaluator thread 1 worker: 0 waiting, 0 unread, 2 done, closed>"


def test_sixteen_waiting_requests_are_warned_of_once_with_their_bytes(mischief):
    with unruly(mischief, busy_policy="queue") as ev:
        ev.trigger_eval(Shifted())
        mischief.gate.await_arrival()
        for _ in range(15):
            ev.trigger_eval(Shifted())
        with pytest.warns(UserWarning, match=r"16 evaluations wait, and their weights take 64 bytes"):
            ev.trigger_eval(Shifted())
        ev.trigger_eval(Shifted())
        assert ev.cancel() == 18
        mischief.gate.open()
        assert ev.wait() is None
        assert ev.stats()["cancelled"] == 18


def test_counts_of_another_evaluator_are_loaded_only_while_idle(tmp_path):
    with evaluator() as ev:
        for _ in range(3):
            ev.evaluate(Shifted())
        state = ev.state_dict()
    with evaluator(keep_best=tmp_path) as ev:
        ev.load_state_dict({**state, "best": 1e6})
        result = ev.evaluate(Shifted())
        assert (result.step, result["eval/policy_version"]) == (3, 4)
        assert not (tmp_path / "best.json").exists(), "the best reward was loaded"
        now = {"step_counter": 4, "policy_version": 4, "best": 1e6}
        for wrong in ({"best": "high"}, {"step_counter": 0.5}, {"policy_version": None}):
            with pytest.raises((TypeError, ValueError)):
                ev.load_state_dict({**state, **wrong})
        assert ev.state_dict() == now, "nothing has changed"
        ev.trigger_eval()
        for use in (ev.state_dict, partial(ev.load_state_dict, state)):
            with pytest.raises(RuntimeError, match="pending, queued, or unread"):
                use()
        ev.wait()


@pytest.mark.parametrize("place", PLACES)
def test_an_unused_evaluator_is_collected_and_ends_its_thread(place):
    ev = evaluator(place)
    ev.evaluate()
    reference, thread = weakref.ref(ev), ev._service._thread
    del ev
    gc.collect()
    assert reference() is None
    end(thread, *[closing for closing in threading.enumerate() if closing.name == "swath eval closes"])


class Model:
    """Has its weights in `policy`, as models of Stable-Baselines3."""

    def __init__(self):
        self.policy = nn.Linear(1, 1)
        self.act(1)

    def act(self, action):
        with torch.no_grad():
            self.policy.bias.fill_(action)

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return np.full(len(observation), int(self.policy.bias)), state


def fixed(action):
    return evaluate_once(lambda observation: 0 * observation[..., 0] + action, UnevenEnv, num_trajectories=6).returns


@pytest.mark.parametrize("place", PLACES)
def test_a_model_with_predict_acts_with_its_weights_of_each_request(place):
    model = Model()
    options = {"policy": model} if place == "thread" else {"policy_factory": Model}
    with Evaluator(UnevenEnv, **options, num_trajectories=6, backend=place) as ev:
        assert ev.evaluate().returns.tolist() == fixed(1).tolist()
        model.act(4)
        assert ev.evaluate(None if place == "thread" else model.policy).returns.tolist() == fixed(4).tolist()


def test_extracted_weights_have_tensors_and_extra_state():
    class Noted(nn.Linear):
        def get_extra_state(self):
            return {"text": "kept"}

        def set_extra_state(self, state):
            """Not needed here."""

    module = nn.Sequential(Noted(1, 1))
    weights = Evaluator.extract_weights(module)
    assert weights["0", "__extra_state__"] == {"text": "kept"}
    assert weights["0", "weight"].data_ptr() != module[0].weight.data_ptr()
    assert not weights["0", "weight"].requires_grad
