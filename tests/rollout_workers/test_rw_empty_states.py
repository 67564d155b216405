"""A recurrent policy's state may begin as an empty nest, which its first answer fills."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sampling_toys import Foreseen, counting_worker

from swath.testing.counting_env import Counting
from swath.testing.script import Script

B = 3


class Filling(Foreseen):
    """Counts the steps of its episodes in a state that begins without a place for them."""

    initial: Any = [{}]
    seen: list[Any] = []

    def get_initial_state(self) -> Any:
        """Empty."""
        return self.initial

    def is_recurrent(self) -> bool:
        """It is."""
        return True

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, **kwargs: Any) -> Any:
        """One more."""
        self.seen.append(state_batches)
        before = self.steps_in(state_batches)
        np.testing.assert_array_equal(np.zeros(B) if before is None else before, obs_batch[:, 2])
        actions, _, extra = super().compute_actions(obs_batch, **kwargs)
        return actions, self.states(np.float32(obs_batch[:, 2] + 1)), extra

    def steps_in(self, states: Any) -> Any:
        """The steps that a state tells of; None if it tells of none."""
        return states[0]["lstm"]["steps"] if states[0] else None

    def states(self, steps: Any) -> Any:
        """A state that tells of steps."""
        return [{"lstm": {"steps": steps}}]


class FillingAPart(Filling):
    """A part of its state is there from the start, beside one that is not."""

    initial = ({"bias": np.ones(2), "more": ({}, np.zeros(1))}, np.zeros(1))

    def steps_in(self, states: Any) -> Any:
        """In the part that begins empty."""
        assert states[0]["bias"].shape == (B, 2)
        part = states[0]["more"][0]
        return part["steps"] if part else None

    def states(self, steps: Any) -> Any:
        """All parts."""
        return [{"bias": np.ones((B, 2)), "more": ({"steps": steps}, np.zeros((B, 1)))}, np.zeros((B, 1))]


STATE = {Filling: lambda state: state["lstm"]["steps"], FillingAPart: lambda state: state["more"][0]["steps"]}


@pytest.fixture(autouse=True)
def _forget() -> None:
    Filling.seen.clear()


@pytest.mark.parametrize("kind", [Filling, FillingAPart])
def test_what_the_first_answer_has_is_kept_and_handed_out_and_zeros_stand_where_it_begins(kind: Any):
    worker, _ = counting_worker(
        Counting(script=Script((7, 5, 9))), policy=kind, rollout_fragment_length=12, model={"max_seq_len": 4}
    )
    with worker:
        batches = [worker.sample(), worker.sample()]
    for batch in batches:
        batch.check_lengths()
        starts = np.cumsum([0, *batch["seq_lens"][:-1]])
        np.testing.assert_array_equal(STATE[kind](batch["state_in_0"]), batch["t"][starts])
        np.testing.assert_array_equal(STATE[kind](batch["state_out_0"]), batch["t"] + 1)
    empty = [step for step, states in enumerate(Filling.seen) if kind.steps_in(kind, states) is None]
    assert empty == [0, 7 + 5 + 9], "where episodes begin in all envs at once"


def test_where_all_episodes_begin_together_the_policy_is_shown_what_they_begin_with():
    worker, _ = counting_worker(Counting(script=Script((4,))), policy=Filling, rollout_fragment_length=6)
    with worker:
        worker.sample()
        worker.sample(force_reset=True)
    assert [step for step, states in enumerate(Filling.seen) if states == [{}]] == [0, 4, 6, 10]


def test_a_state_that_grows_later_is_refused_and_the_next_call_goes_on():
    class Growing(Filling):
        def states(self, steps: Any) -> Any:
            more = {"more": steps} if len(self.seen) == 3 else {}
            return [{"lstm": {"steps": steps}, **more}]

    worker, _ = counting_worker(policy=Growing, rollout_fragment_length=4)
    with worker:
        with pytest.raises(ValueError, match="answered states of 2 arrays; after its first answer they had 1"):
            worker.sample()
        batch = worker.sample()
    assert batch["state_out_0"]["lstm"]["steps"].tolist() == [1, 2, 3, 4] * B


def test_a_state_may_stay_empty():
    class Empty(Filling):
        def steps_in(self, states: Any) -> Any:
            return None

        def compute_actions(self, obs_batch: Any, state_batches: Any = None, **kwargs: Any) -> Any:
            assert state_batches == [{}]
            actions, _, extra = Foreseen.compute_actions(self, obs_batch, **kwargs)
            return actions, [{}], extra

    worker, _ = counting_worker(policy=Empty, rollout_fragment_length=4)
    with worker:
        assert worker.sample().count == 4 * B
