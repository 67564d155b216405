"""A policy called once per slot, each with the noise of its episode."""

import numpy as np
import torch
from evaluation_toys import CoinEnv, evaluate_once

from swath.evaluate.acting import RowByRow
from swath.evaluate.local import Slots
from swath.evaluate.request import EvalRequest
from swath.evaluate.stopping import StopRule
from swath.rollout.policies.exploration import ExplorationType
from swath.rollout.random_state import PrivateStreams


class Row:
    """One slot's policy: answers a draw, and notes what it is told."""

    keys = ("action", "seen")

    def __init__(self):
        self.told = []

    def __call__(self, observation):
        self.told.append(len(observation[0]))
        return [np.array([torch.rand(()).item()]), torch.tensor([float(observation[0][0])])]

    def begin(self, envs):
        self.told.append(("begin", list(envs)))

    def rewind(self):
        self.told.append("rewind")


def test_each_slot_s_draws_follow_from_its_episode_alone_and_go_on_within_it():
    playing = {0: 4, 1: 9}
    actor = RowByRow([Row(), Row()], playing.get, PrivateStreams)
    actor.begin([0, 1])
    first = [actor([np.array([1.0, 2.0])])[0] for _ in range(3)]
    playing.update({0: 9, 1: 4})
    actor.begin([0, 1])
    second = [actor([np.array([1.0, 2.0])])[0] for _ in range(3)]
    np.testing.assert_array_equal(np.array(first)[:, 0], np.array(second)[:, 1])
    np.testing.assert_array_equal(np.array(first)[:, 1], np.array(second)[:, 0])
    assert len(np.unique(first)) == 6


def test_an_end_within_an_episode_leaves_its_noise_going_on():
    actor = RowByRow([Row()], {0: 4}.get, PrivateStreams)
    actor.begin([0])
    broken = [actor([np.zeros(1)])[0].item()]
    actor.begin([0])
    broken.append(actor([np.zeros(1)])[0].item())
    whole = RowByRow([Row()], {0: 4}.get, PrivateStreams)
    whole.begin([0])
    assert broken == [whole([np.zeros(1)])[0].item() for _ in range(2)]


def test_a_slot_without_episode_is_asked_once_without_a_trace_and_then_keeps_its_row():
    idle = Row()
    actor = RowByRow([Row(), idle], {0: 4}.get, PrivateStreams)
    actor.begin([0, 1])
    before = torch.get_rng_state()
    rows = [actor([np.array([1.0, 2.0])])[0][1] for _ in range(3)]
    assert torch.equal(torch.get_rng_state(), before)
    assert len(set(rows)) == 1
    assert idle.told == [("begin", [0]), 1]


def test_rows_of_arrays_and_of_tensors_are_joined_and_a_call_can_be_taken_back():
    rows = [Row(), Row()]
    actor = RowByRow(rows, {0: 1, 1: 2}.get, PrivateStreams)
    actor.begin([0, 1])
    drawn, echoed = actor([np.array([5.0, 6.0])])
    assert drawn.shape == (2,)
    assert torch.equal(echoed, torch.tensor([5.0, 6.0]))
    actor.rewind()
    assert all(row.told[-1] == "rewind" for row in rows)


def test_more_slots_than_episodes_sample_the_same_actions():
    def drawing(observation):
        return torch.randint(0, 7, observation.shape[:-1])

    request = EvalRequest(stop=StopRule(3), exploration_type=ExplorationType.RANDOM)
    few, many = (evaluate_once(drawing, CoinEnv, request, Slots(n)) for n in (1, 6))
    np.testing.assert_array_equal(few.returns, many.returns)
