"""`Evaluator`: what holds on every backend."""

import threading

import pytest
import torch

from swath.errors import Closed
from swath.evaluators import Evaluator

PLACES = ("thread", "process")


class Leaning(torch.nn.Module):
    """Deterministic, computed row by row."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.0, weight, 1.0, 1.0]))

    def forward(self, observation):
        return ((observation * self.weight).sum(-1) > 0).long()


def evaluator(place="thread", **options):
    return Evaluator(
        "CartPole-v1", policy_factory=Leaning, backend=place, **{"num_trajectories": 7, "max_steps": 90, **options}
    )


@pytest.fixture(scope="module")
def reference():
    with evaluator() as ev:
        return ev.evaluate()


@pytest.mark.parametrize(
    ("place", "layout"),
    [("thread", {"num_envs": 3}), ("process", {}), ("process", {"num_envs": 2, "num_workers": 3})],
    ids=str,
)
def test_numbers_do_not_depend_on_where_and_with_how_many_envs(place, layout, reference):
    with evaluator(place, **layout) as ev:
        result = ev.evaluate()
    assert result.returns.tolist() == reference.returns.tolist()
    assert result.seeds.tolist() == reference.seeds.tolist()
    timing = {"eval/fps", "eval/duration_s"}
    assert {key: result[key] for key in result.keys() - timing} == {
        key: reference[key] for key in reference.keys() - timing
    }


@pytest.mark.parametrize("place", PLACES)
def test_weights_are_those_of_the_moment_of_the_call(place):
    policy = Leaning()
    with evaluator(place, busy_policy="queue") as ev:
        for weight in (1.0, -1.0, 1.0):
            with torch.no_grad():
                policy.weight[1] = weight
            assert ev.trigger_eval(policy)
        with torch.no_grad():
            policy.weight.zero_()
        results = [ev.wait() for _ in range(3)]
        assert ev.wait() is None
    assert results[0].returns.tolist() == results[2].returns.tolist() != results[1].returns.tolist()
    assert [result.step for result in results] == [0, 1, 2]
    assert [result["eval/policy_version"] for result in results] == [1, 2, 3]


def test_the_policy_is_read_at_the_call_and_never_run():
    policy = Leaning()
    with Evaluator("CartPole-v1", policy, num_trajectories=3, max_steps=90) as ev:
        first = ev.evaluate()
        with torch.no_grad():
            policy.weight.neg_()
        second = ev.evaluate()
    assert policy.training
    assert first.returns.tolist() != second.returns.tolist()
    assert second["eval/policy_version"] == 0


def test_results_are_shown_before_they_can_be_read():
    shown = []

    def on_result(td):
        shown.append((int(td["eval/step"]), ev.pending, threading.current_thread().name))

    with evaluator(on_result=on_result) as ev:
        ev.trigger_eval(step=5)
        assert ev.wait()["eval/step"] == 5
        ev.evaluate(step=6)
    assert [(step, pending) for step, pending, _ in shown] == [(5, True), (6, False)]
    assert {name for _, _, name in shown} == {"swath eval"}


@pytest.mark.parametrize("place", PLACES)
def test_after_shutdown_nothing_is_taken_and_unread_results_stay(place):
    ev = evaluator(place)
    ev.trigger_eval()
    while ev.pending:
        threading.Event().wait(0.01)
    ev.shutdown()
    ev.shutdown()
    assert ev.closed
    with pytest.raises(Closed):
        ev.trigger_eval()
    with pytest.raises(Closed):
        ev.evaluate()
    assert ev.poll().lengths.sum() > 0
    assert ev.wait() is None
    assert not [thread for thread in threading.enumerate() if "eval" in thread.name]
