"""States that begin as an empty nest, and are filled by the policy's first answer."""

import numpy as np
import pytest
from sampling_toys import Foreseen, counting_worker, made_of

from swath.rollout_workers import RandomPolicy
from swath.rollout_workers.nests import has_empty
from swath.rollout_workers.sampling.open_states import in_one, in_rows
from swath.testing.counting_env import Counting
from swath.testing.envs import MockEnv3
from swath.testing.script import Script


class Filling(RandomPolicy):
    """Counts its steps in a nest that it makes itself."""

    shown = ()

    def get_initial_state(self):
        return [np.zeros(()), {"in": ({}, np.zeros(2))}]

    def is_recurrent(self):
        return self.config["model"]["max_seq_len"] < 20

    def compute_actions(self, obs_batch, state_batches=None, **_):
        count, nest = state_batches
        self.shown = (*self.shown, nest)
        filled = {"in": ({"count": count + 1}, nest["in"][1] + 1)}
        return np.zeros(len(obs_batch), dtype=int), [count + 1, filled], {}


def counts(states):
    return [state["in"][0].get("count") for state in states]


def test_batches_hold_a_nest_per_row_the_first_of_an_episode_as_it_was_given():
    with made_of(lambda: MockEnv3(3), Filling, num_envs_per_env_runner=2, rollout_fragment_length=4) as worker:
        batch, later = worker.sample(), worker.sample()
    assert counts(batch["state_in_1"]) == [None, 1, 2, None] * 2
    assert counts(batch["state_out_1"]) == [1, 2, 3, 1] * 2
    assert counts(later["state_in_1"]) == [1, 2, None, 1] * 2
    assert batch["state_in_1"][2]["in"][1].tolist() == [2, 2]
    assert batch["state_out_0"].tolist() == [1, 2, 3, 1] * 2


def test_policies_get_one_nest_in_which_zeros_stand_for_what_is_not_there_yet():
    lengths = iter([2, 3])
    with made_of(lambda: MockEnv3(next(lengths)), Filling, num_envs_per_env_runner=2, rollout_fragment_length=3) as it:
        it.sample()
        shown = it.get_policy().shown
    assert shown[0]["in"][0] == {}
    assert [nest["in"][0]["count"].tolist() for nest in shown[1:]] == [[1, 1], [0, 2]]
    assert [nest["in"][1][:, 0].tolist() for nest in shown] == [[0, 0], [1, 1], [0, 2]]


def test_a_sequence_begins_with_the_nest_that_its_first_row_was_made_with():
    model = {"max_seq_len": 2}
    with made_of(lambda: MockEnv3(9), Filling, num_envs_per_env_runner=1, rollout_fragment_length=5, model=model) as it:
        batch = it.sample()
    batch.check_lengths()
    assert batch["seq_lens"].tolist() == [2, 2, 1]
    assert counts(batch["state_in_1"]) == [None, 2, 4]


class Lone(Foreseen):
    """One state, all of which it makes itself: the steps of its episodes."""

    seen = ()

    def get_initial_state(self):
        return [{}]

    def compute_actions(self, obs_batch, state_batches=None, **given):
        self.seen = (*self.seen, state_batches[0])
        actions, _, extra = super().compute_actions(obs_batch, **given)
        return actions, [self.after(np.float32(obs_batch[:, 2] + 1))], extra

    def after(self, steps):
        return {"steps": steps}


def test_over_many_episodes_each_row_has_its_own():
    worker, _ = counting_worker(Counting(script=Script((7, 5, 9))), policy=Lone, rollout_fragment_length=12)
    with worker:
        batches = [worker.sample(), worker.sample()]
        seen = worker.get_policy().seen
    for batch in batches:
        assert [state.get("steps", 0) for state in batch["state_in_0"]] == batch["t"].tolist()
        assert [state["steps"] for state in batch["state_out_0"]] == (batch["t"] + 1).tolist()
    assert [step for step, state in enumerate(seen) if state == {}] == [0, 7 + 5 + 9], "all begin at once"


@pytest.mark.parametrize("later", [{}, {"more": ()}])
def test_what_is_in_a_state_may_change_from_step_to_step(later):
    class Odd(Lone):
        def after(self, steps):
            return {"steps": steps} if len(self.seen) % 2 else later

    worker, _ = counting_worker(policy=Odd, rollout_fragment_length=4)
    with worker:
        batch = worker.sample()
    assert [state == later for state in batch["state_out_0"]] == [False, True, False, True] * 3


def test_rows_of_a_nest_make_that_nest_again_and_do_not_alias_it():
    nest = {"a": np.arange(4).reshape(2, 2), "b": (np.ones(2),)}
    rows = in_rows(nest, 2)
    nest["a"][:] = 9
    again = in_one(rows)
    assert again["a"].tolist() == [[0, 1], [2, 3]]
    assert again["b"][0].tolist() == [1, 1]


def test_only_dicts_and_tuples_are_nests_that_can_be_empty():
    assert has_empty({})
    assert has_empty(({"a": np.zeros(2), "b": ()},))
    assert not has_empty({"a": (np.zeros(2),)})
    assert not has_empty([])
