"""What the face promises beside results: status, counts to go on from, its end, and whose weights act."""

import gc
import threading
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from eval_mischief import Mischief, evaluator
from evaluator_toys import evaluate_once
from torch import nn
from uneven_env import Shifted, UnevenEnv

from swath.evaluators import Evaluator

# ---- within on_result


def test_on_result_is_told_that_it_cannot_wait_and_sees_its_own_evaluation_as_pending():
    said = []

    def on_result(td):
        for wait in (ev.evaluate, ev.wait, partial(ev.wait, 1.0), partial(ev.poll, None)):
            with pytest.raises(RuntimeError, match=r"would wait for itself; use trigger_eval"):
                wait()
        if not said:  # later it could read what its caller waits for
            said.append((ev.poll(), ev.pending, ev.trigger_eval()))

    with evaluator(None, on_result=on_result, busy_policy="queue") as ev:
        ev.trigger_eval()
        assert [ev.wait().step, ev.wait().step, ev.wait()] == [0, 1, None]
        assert ev.last_callback_error is None
    assert said == [(None, True, True)]


def test_an_on_result_that_takes_long_is_warned_of_once(monkeypatch):
    monkeypatch.setattr("swath.evaluation.reporting.LONG_S", 0.0)
    with evaluator(None, on_result=lambda td: None) as ev:
        with pytest.warns(UserWarning, match="no evaluation begins") as said:
            [ev.evaluate() for _ in range(2)]
        assert len(said) == 1


# ---- status


@pytest.fixture
def mischief(tmp_path):
    """Holds up the first evaluation in its third step."""
    mischief = Mischief.at(tmp_path)
    mischief.order("step", "hang")
    return mischief


def test_its_text_says_what_is_evaluated_and_how_far_it_is(mischief):
    with evaluator(mischief, busy_policy="queue") as ev:
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
    with evaluator(mischief, busy_policy="queue") as ev:
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


# ---- counts


def test_counts_go_on_where_another_evaluator_has_left_them_and_only_at_rest(tmp_path):
    with evaluator() as ev:
        for _ in range(3):
            ev.evaluate(Shifted())
        state = ev.state_dict()
    with evaluator(None, keep_best=tmp_path) as ev:
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


# ---- its end


@pytest.mark.parametrize("place", ["thread", "process"])
def test_an_evaluator_that_nobody_has_is_collected_and_ends_its_thread(place, warm_processes):
    ev = evaluator(None, place)
    ev.evaluate()
    gone, thread = weakref.ref(ev), ev._service._thread
    del ev
    gc.collect()
    assert gone() is None
    thread.join(60)
    for closing in threading.enumerate():
        if closing.name == "swath eval closes":
            closing.join()
    assert not thread.is_alive()


# ---- whose weights act


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


@pytest.mark.parametrize("place", ["thread", "process"])
def test_a_model_with_predict_acts_with_its_weights_of_each_request(place, warm_processes):
    model = Model()
    options = {"policy": model} if place == "thread" else {"policy_factory": Model}
    with Evaluator(UnevenEnv, **options, num_trajectories=6, backend=place) as ev:
        assert ev.evaluate().returns.tolist() == fixed(1).tolist()
        model.act(4)
        assert ev.evaluate(None if place == "thread" else model.policy).returns.tolist() == fixed(4).tolist()


def test_a_function_that_refers_to_a_module_is_refused_for_it_would_act_itself():
    net = Shifted()
    for policy in (lambda observation: net(observation), net_of_the_module):  # noqa: PLW0108  that is what is tried
        with pytest.raises(TypeError, match=r"refers to .*policy_factory"):
            Evaluator(UnevenEnv, policy)


NET = Shifted()


def net_of_the_module(observation):
    return NET(observation)


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
