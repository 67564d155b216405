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
