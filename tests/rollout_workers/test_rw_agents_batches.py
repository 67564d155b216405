"""How much a sampler of several agents hands out, of what type, and how rows are counted and numbered."""

import numpy as np
import pytest
from rw_toys import TWO, Troupe, by_parity

from mock_envs import BasicMultiAgent, RoundRobinMultiAgent
from swath.rollout_workers import MultiAgentBatch, SampleBatch


def runs(column):
    return np.flatnonzero(np.diff(column, prepend=column[0] - 1))


def facts(batch):
    return list(zip(batch["agent_index"], batch["t"], batch["obs"].argmax(axis=1), strict=True))


def test_fifty_steps_of_five_agents_are_rows_of_whole_episodes_by_agent_then_time():
    batch = Troupe(lambda: BasicMultiAgent(5), 1, TWO, by_parity, rollout_fragment_length=50).sample()
    assert isinstance(batch, MultiAgentBatch)
    assert (batch.env_steps(), batch.agent_steps()) == (50, 250)
    assert (batch["p0"].count, batch["p1"].count) == (150, 100)
    assert batch["p0"]["t"].tolist() == list(range(25)) * 6
    assert batch["p0"]["agent_index"].tolist() == [agent for _ in range(2) for agent in (0, 2, 4) for _ in range(25)]


def test_agents_in_turn_have_the_index_of_the_step_that_closed_each_transition():
    batch = Troupe(lambda: RoundRobinMultiAgent(5, True), rollout_fragment_length=50).sample()
    assert isinstance(batch, SampleBatch)
    assert (batch.count, batch.env_steps()) == (42, 50)
    assert batch["t"][:10].tolist() == [4, 9, 14, 19, 24, 5, 10, 15, 20, 25]
    np.testing.assert_array_equal(batch["new_obs"].argmax(axis=1), batch["obs"].argmax(axis=1) + 1)


def test_what_is_open_at_the_end_of_a_call_is_handed_out_by_the_call_that_closes_it():
    troupe = Troupe(lambda: RoundRobinMultiAgent(5, True), rollout_fragment_length=3)
    batches = [troupe.sample() for _ in range(10)]
    assert [batch.env_steps() for batch in batches] == [3] * 10
    assert isinstance(batches[0], MultiAgentBatch)  # nothing is closed yet
    assert batches[0].policy_batches == {}
    whole = Troupe(lambda: RoundRobinMultiAgent(5, True), rollout_fragment_length=30).sample()
    rows = [row for batch in batches[1:] for row in facts(batch)]
    assert sorted(rows) == sorted(facts(whole))


def test_chunks_are_of_one_agent_episode_call_and_version_and_their_numbers_never_repeat():
    troupe = Troupe(lambda: RoundRobinMultiAgent(2), rollout_fragment_length=4)
    seen = set()
    for version, chunks in ((1, [2, 1]), (1, [2, 2]), (2, [1, 1, 1])):
        troupe.set_weights({}, weights_seq_no=version)
        batch = troupe.sample()
        starts = runs(batch["unroll_id"])
        assert np.diff(starts, append=batch.count).tolist() == chunks
        numbers = set(batch["unroll_id"].tolist())
        assert not numbers & seen
        seen |= numbers
    # agent 1 had acted before the call
    assert batch["agent_index"].tolist() == [0, 1, 1]
    assert batch["policy_version"].tolist() == [2, 1, 2]


@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_agent_steps_can_be_what_counts(mode):
    settings = {"count_steps_by": "agent_steps", "rollout_fragment_length": 33, "batch_mode": mode}
    troupe = Troupe(lambda: BasicMultiAgent(4), 2, TWO, by_parity, **settings)
    steps = {"truncate_episodes": 18, "complete_episodes": 50}[mode]
    for _ in range(3):
        batch = troupe.sample()
        assert (batch.env_steps(), batch.agent_steps()) == (steps, steps * 4)
