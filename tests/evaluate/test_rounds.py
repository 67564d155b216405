"""Rounds of episodes."""

import pytest

from swath.evaluate.ledger import Booked
from swath.evaluate.request import EvalRequest
from swath.evaluate.rounds import Rounds
from swath.evaluate.stopping import StopRule


def rows(episodes, total=1.0):
    return {episode: Booked(total + episode % 2, 5, terminated=True, truncated=False) for episode in episodes}


def test_a_fixed_number_is_one_round():
    rounds = Rounds(EvalRequest(StopRule(4)))
    assert (rounds.due, rounds.stopped) == (range(4), None)
    rounds.played(rows(range(4)))
    assert rounds.stopped == "fixed"
    assert rounds.episodes().returns.tolist() == [1.0, 2.0, 1.0, 2.0]


def test_rounds_go_on_until_the_interval_is_narrow_enough():
    rounds = Rounds(EvalRequest(StopRule(10, until_ci_halfwidth=0.2)))
    numbers = []
    while rounds.stopped is None:
        numbers.append(rounds.due)
        rounds.played(rows(reversed(rounds.due)))
    assert rounds.stopped == "ci"
    assert numbers == [range(start, start + 10) for start in range(0, 10 * len(numbers), 10)]
    assert len(numbers) > 1
    assert len(rounds.episodes().returns) == 10 * len(numbers)


def test_the_bound_ends_them():
    rounds = Rounds(EvalRequest(StopRule(4, until_ci_halfwidth=1e-9, max_trajectories=9)))
    while rounds.stopped is None:
        rounds.played(rows(rounds.due))
    assert (rounds.stopped, len(rounds.episodes().returns)) == ("max", 8)


def test_a_round_with_a_hole_is_refused():
    rounds = Rounds(EvalRequest(StopRule(4)))
    with pytest.raises(ValueError, match=r"episodes \[2\] of the round range\(0, 4\)"):
        rounds.played(rows((0, 1, 3)))
