"""What `Evaluator` gives back: keys and types, whose outcome is read when, what users measure; its status and end."""

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

pytestmark = pytest.mark.usefixtures("warm_processes")

NUMBERS = {
    **dict.fromkeys(("reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"), float),
    **dict.fromkeys(("reward_ci_low", "reward_ci_high", "episode_length", "duration_s", "fps"), float),
    **dict.fromkeys(("num_episodes", "frames", "step", "policy_version"), int),
}


def kinds_in(result):
    kinds = {key: value.dtype if isinstance(value, torch.Tensor) else type(value) for key, value in result.items()}
    return {key.removeprefix("eval/"): kind for key, kind in kinds.items()}


def test_keys_and_types_are_those_of_a_table():
    """That they are the same everywhere is part of the contract."""

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


def test_steps_are_counted_where_none_is_given_and_refused_requests_use_none_up():
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
def test_listeners_get_flat_tensordicts_on_the_cpu(place):
    heard = []
    result = evaluated(place, on_result=heard.append, per_episode=True)
    assert [each.batch_size for each in heard] == [torch.Size([])]
    assert set(heard[0].keys()) == set(result)
    for key, value in result.items():
        said = heard[0][key]
        assert said.dtype == {float: torch.float64, int: torch.int64}.get(type(value), said.dtype)
        assert said.tolist() == (value.tolist() if isinstance(value, torch.Tensor) else value)


# metrics_fn ---------------------------------------------------------------------------------------------------------


def trajectories(place="thread", **options):
    """What `metrics_fn` gets, and the result."""
    seen = []
    result = evaluated(place, metrics_fn=lambda td: seen.append(td) or {}, **options)
    assert len(seen) == 1
    return seen[0], result


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
def test_what_goes_wrong_in_measuring_is_the_outcome_of_that_evaluation(measure, kind, text):
    wrong = [True]

    def metrics(td):
        return measure(td) if wrong.pop() else {"fine": 1}

    with evaluator(metrics_fn=metrics) as ev:
        ev.trigger_eval()
        with pytest.raises(kind, match=text):
            ev.wait()
        wrong.append(False)
        assert ev.evaluate()["eval/fine"] == 1


def test_on_result_cannot_wait_and_sees_its_own_evaluation_as_pending():
    said = []

    def on_result(td):
        for wait in (ev.evaluate, ev.wait, partial(ev.wait, 1.0), partial(ev.poll, None)):
            with pytest.raises(RuntimeError, match=r"would wait for itself; use trigger_eval"):
                wait()
        if not said:  # later it could read what its caller waits for
            said.append((ev.poll(), ev.pending, ev.trigger_eval()))

    with evaluator(on_result=on_result, busy_policy="queue") as ev:
        ev.trigger_eval()
        assert [ev.wait().step, ev.wait().step, ev.wait()] == [0, 1, None]
        assert ev.last_callback_error is None
    assert said == [(None, True, True)]


def test_an_on_result_that_takes_long_is_warned_of_once(monkeypatch):
    monkeypatch.setattr("swath.evaluation.reporting.LONG_S", 0.0)
    with evaluator(on_result=lambda td: None) as ev:
        with pytest.warns(UserWarning, match="no evaluation begins") as said:
            [ev.evaluate() for _ in range(2)]
        assert len(said) == 1


@pytest.fixture
def mischief(tmp_path):
    """Holds up the first evaluation in its third step."""
    mischief = Mischief.at(tmp_path)
    mischief.order("step", "hang")
    return mischief


def test_its_text_says_what_is_evaluated_and_how_far_it_is(mischief):
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


def test_from_sixteen_on_what_waits_is_warned_of_once_with_its_bytes(mischief):
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


def test_counts_go_on_where_another_evaluator_has_left_them_and_only_at_rest(tmp_path):
    with evaluator() as ev:
        for _ in range(3):
            ev.evaluate(Shifted())
        state = ev.state_dict()
    with evaluator(keep_best=tmp_path) as ev:
        ev.load_state_dict({**state, "best": 1e6})
        result = ev.evaluate(Shifted())
        assert (result.step, result["eval/policy_version"]) == (3, 4)
        assert not (tmp_path / "best.json").exists(), "the bar came along"
        assert ev.state_dict() == {"step_counter": 4, "policy_version": 4, "best": 1e6}
        ev.trigger_eval()
        for use in (ev.state_dict, partial(ev.load_state_dict, state)):
            with pytest.raises(RuntimeError, match="pending, queued, or unread"):
                use()
        ev.wait()


@pytest.mark.parametrize("place", PLACES)
def test_an_evaluator_that_nobody_has_is_collected_and_ends_its_thread(place):
    ev = evaluator(place)
    ev.evaluate()
    gone, thread = weakref.ref(ev), ev._service._thread
    del ev
    gc.collect()
    assert gone() is None
    end(thread, *[closing for closing in threading.enumerate() if closing.name == "swath eval closes"])


class Model:
    """As models of Stable-Baselines3: what picks actions has its weights in `policy`."""

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


def test_extracted_weights_have_the_extra_state_of_modules_beside_their_tensors():
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
