"""How much a sampler of several agents hands out, of what type, and how rows are counted and numbered."""

import tracemalloc

import numpy as np
import pytest
from agent_toys import Counter, Troupe

from swath.rollout_workers import DefaultCallbacks, MultiAgentBatch, SampleBatch
from swath.testing.envs import BasicMultiAgent, MockEnv, RoundRobinMultiAgent, SometimesZeroAgentsMultiAgent

TWO = {"p0": Counter, "p1": Counter}


def by_parity(agent, episode):
    return f"p{agent % 2}"


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


def test_a_batch_of_one_policy_is_no_sample_batch_if_the_worker_has_another():
    troupe = Troupe(
        lambda: BasicMultiAgent(2), 1, {"default_policy": Counter, "other": Counter}, rollout_fragment_length=5
    )
    batch = troupe.sample()
    assert isinstance(batch, MultiAgentBatch)
    assert list(batch.policy_batches) == ["default_policy"]


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


def test_whole_episodes_are_handed_out_at_the_first_step_at_which_they_have_enough_steps():
    troupe = Troupe(
        lambda: BasicMultiAgent(3), 2, TWO, by_parity, rollout_fragment_length=15, batch_mode="complete_episodes"
    )
    batch = troupe.sample()
    assert (batch.env_steps(), batch.agent_steps()) == (50, 150)
    assert batch["p1"]["t"].tolist() == list(range(25)) * 2
    assert batch["p1"]["terminateds"].sum() == 2


def test_running_episodes_go_on_in_the_next_call_when_whole_ones_are_handed_out():
    lengths = iter([4, 10])

    class Uneven(BasicMultiAgent):
        def __init__(self):
            super().__init__(1)
            self.envs = {0: MockEnv(next(lengths))}

    troupe = Troupe(Uneven, 2, rollout_fragment_length=4, batch_mode="complete_episodes")
    first, second = troupe.sample(), troupe.sample()
    assert first["t"].tolist() == [0, 1, 2, 3] * 2
    assert second["t"].tolist() == [*range(10)]
    assert [batch.env_steps() for batch in (first, second)] == [8, 10]


@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_agent_steps_can_be_what_counts(mode):
    troupe = Troupe(
        lambda: BasicMultiAgent(4),
        2,
        TWO,
        by_parity,
        count_steps_by="agent_steps",
        rollout_fragment_length=33,
        batch_mode=mode,
    )
    steps = {"truncate_episodes": 18, "complete_episodes": 50}[mode]
    for _ in range(3):
        batch = troupe.sample()
        assert (batch.env_steps(), batch.agent_steps()) == (steps, steps * 4)


def test_counters_and_running_episodes_say_what_was_handed_out():
    troupe = Troupe(lambda: BasicMultiAgent(3), 2, rollout_fragment_length=30)
    troupe.sample()
    counts = troupe.counts
    assert (
        counts["env_steps_sampled"],
        counts["agent_steps_sampled"],
        counts["episodes"],
        counts["env_steps_discarded"],
    ) == (60, 180, 2, 0)


def test_batches_are_the_receivers_own():
    troupe = Troupe(lambda: SometimesZeroAgentsMultiAgent(3), rollout_fragment_length=30)
    first = troupe.sample()
    kept = first.copy()
    for column in first.values():
        column[...] = 0
    second = troupe.sample()
    assert not any(np.shares_memory(first[name], second[name]) for name in first)
    assert kept["rewards"].any()
    assert second["rewards"].any()


def test_memory_stays_flat_over_many_calls_of_an_endless_episode():
    class Endless(BasicMultiAgent):
        def step(self, action_dict):
            step = super().step(action_dict)
            for env in self.envs.values():
                env.i = 0
            return step

    troupe = Troupe(lambda: Endless(3), rollout_fragment_length=10)
    held = []
    tracemalloc.start()
    for _ in range(220):
        assert troupe.sample().count == 30
        troupe.policy_map["default_policy"].asked.clear()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held[-1] - held[19] < 100_000


def test_starting_over_gives_up_running_episodes():
    troupe = Troupe(lambda: BasicMultiAgent(2), rollout_fragment_length=10)
    first = troupe.sample()
    second = troupe.sample(force_reset=True)
    assert second["t"].tolist() == [*range(10)] * 2
    assert set(first["eps_id"]) != set(second["eps_id"])


def test_whole_episodes_that_are_given_up_are_discarded_and_counted():
    class Tired(DefaultCallbacks):
        steps = 0

        def on_episode_step(self, **kwargs):
            self.steps += 1
            if self.steps == 25 + 7:
                raise RuntimeError("tired")

    settings = {"rollout_fragment_length": 5, "batch_mode": "complete_episodes"}
    whole = Troupe(lambda: BasicMultiAgent(2), callbacks=Tired(), **settings)
    whole.sample()
    with pytest.raises(RuntimeError, match="tired"):
        whole.sample()
    batch = whole.sample(force_reset=True)
    assert whole.counts["env_steps_discarded"] == 7
    assert batch["t"].tolist() == [*range(25)] * 2


def test_an_episode_that_does_not_end_is_warned_of_once_where_whole_ones_are_handed_out(monkeypatch):
    monkeypatch.setattr("swath.rollout_workers.sampling.sampler.LONG", 20)
    troupe = Troupe(lambda: BasicMultiAgent(2), 2, rollout_fragment_length=1, batch_mode="complete_episodes")
    with pytest.warns(UserWarning, match="sub-env [01] has lasted 21 steps") as warned:
        troupe.sample()
    troupe.sample()
    assert len(warned) == 2
