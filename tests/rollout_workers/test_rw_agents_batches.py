"""Batches of several agents: how much is handed out, in which order and of what type; post-processing, failures."""

import numpy as np
import pytest
from rw_toys import TWO, Agents, Counter, Troupe, by_parity

from mock_envs import BasicMultiAgent, MultiAgentCartPole, RoundRobinMultiAgent
from swath.rollout_workers import DefaultCallbacks, MultiAgentBatch, SampleBatch
from swath.rollout_workers.policies.ppo import PPOTorchPolicy


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


class Noting(Counter):
    """Keeps what it was asked to post-process; adds a column."""

    def __init__(self, *args):
        super().__init__(*args)
        self.seen = []

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        self.seen.append((sample_batch, other_agent_batches, episode))
        sample_batch["mine"] = np.full(sample_batch.count, len(self.seen))
        return sample_batch


def test_an_overridden_method_gets_each_chunk_with_those_of_the_other_agents_and_the_episode():
    troupe = Troupe(lambda: BasicMultiAgent(3), 1, {"p0": Noting, "p1": Noting}, by_parity, rollout_fragment_length=30)
    batch = troupe.sample()
    p0, p1 = troupe.policy_map.values()
    assert [(chunk["agent_index"][0], chunk.count) for chunk, _, _ in p0.seen] == [(0, 25), (2, 25), (0, 5), (2, 5)]
    assert [(chunk["agent_index"][0], chunk.count) for chunk, _, _ in p1.seen] == [(1, 25), (1, 5)]
    chunk, others, episode = p0.seen[2]
    assert set(others) == {1, 2}
    assert others[1][:2] == ("p1", p1)
    assert others[2][:2] == ("p0", p0)
    assert [other.count for _, _, other in others.values()] == [5, 5]
    assert episode.episode_id == chunk["eps_id"][0]
    assert episode.policy_for(1) == "p1"
    assert batch["p0"]["mine"].tolist() == [1] * 25 + [2] * 25 + [3] * 5 + [4] * 5


def test_a_chunk_may_come_back_longer_or_shorter_and_anything_but_a_batch_is_refused():
    class Odd(Counter):
        def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
            agent = sample_batch["agent_index"][0]
            return {0: sample_batch[:2], 1: sample_batch.concat(sample_batch), 2: None}[agent]

    troupe = Troupe(lambda: BasicMultiAgent(2), policies={"default_policy": Odd}, rollout_fragment_length=5)
    batch = troupe.sample()
    assert batch["agent_index"].tolist() == [0] * 2 + [1] * 10
    assert batch.env_steps() == 5
    troupe = Troupe(lambda: BasicMultiAgent(3), policies={"default_policy": Odd}, rollout_fragment_length=5)
    with pytest.raises(TypeError, match="postprocess_trajectory returned None"):
        troupe.sample()


def test_callbacks_see_each_chunk_with_all_originals_its_own_too():
    told = []

    class Looking(DefaultCallbacks):
        def on_postprocess_trajectory(
            self, *, worker, episode, agent_id, policy_id, policies, postprocessed_batch, original_batches, **kwargs
        ):
            told.append((agent_id, policy_id, sorted(original_batches), episode.episode_id))
            assert (policies, episode.last_info_for(agent_id)) == (worker.policy_map, {})
            postprocessed_batch["rewards"] = postprocessed_batch["rewards"] * 10

    troupe = Troupe(lambda: BasicMultiAgent(3), 1, TWO, by_parity, Looking(), rollout_fragment_length=4)
    batch = troupe.sample()
    episode = batch["p0"]["eps_id"][0]
    assert told == [(agent, f"p{agent % 2}", [0, 1, 2], episode) for agent in (0, 2, 1)]
    assert batch["p0"]["rewards"].tolist() == [10.0] * 8


def test_shipped_policies_are_asked_for_values_once_per_call():
    class Asked(PPOTorchPolicy):
        calls = 0

        def compute_values(self, input_dict):
            Asked.calls += 1
            return super().compute_values(input_dict)

    make = lambda: MultiAgentCartPole({"num_agents": 4})
    Troupe(make, 2, {"default_policy": Asked}, rollout_fragment_length=5).sample()
    assert Asked.calls == 1


def test_agents_that_are_not_to_be_trained_are_left_out_but_their_env_steps_count():
    untrained = {1: {"training_enabled": False}}
    tell = lambda env, answer: answer[4].update(untrained)
    batch = Troupe(lambda: Agents(hook=tell), rollout_fragment_length=5).sample()
    assert batch["agent_index"].tolist() == [0] * 5
    untrained[0] = untrained[1]
    troupe = Troupe(lambda: Agents(hook=tell), rollout_fragment_length=5)
    batch = troupe.sample()
    assert isinstance(batch, MultiAgentBatch)
    assert (batch.policy_batches, batch.env_steps()) == ({}, 5)
    assert (troupe.counters["env_steps_sampled"], troupe.counters["agent_steps_sampled"]) == (5, 0)


def test_batches_know_how_often_the_policy_that_acted_was_updated():
    troupe = Troupe(lambda: BasicMultiAgent(2), 1, TWO, by_parity, rollout_fragment_length=5)
    troupe.get_policy("p1").num_grad_updates = 7
    batch = troupe.sample()
    assert (batch["p0"].num_grad_updates, batch["p1"].num_grad_updates) == (0, 7)


class Notes(DefaultCallbacks):
    def __init__(self):
        self.ends = []

    def on_episode_end(self, *, episode, env_index, **kwargs):
        self.ends.append((env_index, episode))


BROKE = RuntimeError("broke")
MISSHAPEN = {0: np.zeros(1, np.float32), 1: np.zeros(3, np.float32)}
WAYS = {
    "step": (BROKE, None, RuntimeError, "broke"),
    "shape": (0, MISSHAPEN, ValueError, "returned an observation of shape"),
    "unknown": (0, {9: np.zeros(1, np.float32)}, KeyError, "gave 'nobody' for agent 9; there are"),
}


def by_agent(agent, episode):
    return "default_policy" if agent in (0, 1) else "nobody"


def troupe_of(place, value=None, **config):
    """Three envs; the second raises, or returns this value in this place, in the third step of its first episode."""

    def go_wrong(env, answer):
        if env is troupe.made[1] and (env.episode, env.at) == (0, 3):
            if isinstance(place, Exception):
                raise place
            answer[place] = value

    config = {"rollout_fragment_length": 4, **config}
    troupe = Troupe(lambda: Agents(2, 6, hook=go_wrong), 3, mapping=by_agent, callbacks=Notes(), **config)
    return troupe


def rows(batch, env_rows=8):
    return [batch["obs"][i : i + env_rows, 0].astype(int).tolist() for i in range(0, batch.count, env_rows)]


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_breaks_is_raised_and_the_next_call_resumes_with_all_others_untouched(way):
    place, value, error, text = WAYS[way]
    troupe = troupe_of(place, value)
    with pytest.raises(error) as raised:
        troupe.sample()
    assert text in str(raised.value)
    note = "raised by sub-env 1 (last seed None) in step 2 of its episode, counted from 0"
    assert note in raised.value.__notes__
    batch = troupe.sample()
    assert (batch.count, batch.env_steps()) == (24, 12)
    plain, broken = [0, 1, 2, 3] * 2, [0, 1] * 4
    assert rows(batch) == [plain, broken, plain]
    assert batch["truncateds"][8:16].tolist() == [False, True, False, True, False, False, False, False]
    assert troupe.sample().count == 24
    assert [env.episode for env in troupe.made] == [1, 1, 1]
    faulty, *others = troupe.get_metrics()
    assert (faulty.episode_faulty, faulty.env_index) == (True, 1)
    assert text.split(";")[0] in faulty.error
    assert [(told.episode_faulty, told.episode_length) for told in others] == [(False, 6)] * 3
    env, ended = troupe.callbacks.ends[0]
    assert (env, isinstance(ended, error)) == (1, True)


def test_an_episode_in_which_nobody_acts_breaks_its_env():
    def hide(env, answer):
        answer[0] = {} if env.episode == 1 else answer[0]

    troupe = Troupe(lambda: Agents(length=3, hook=hide), rollout_fragment_length=3)
    troupe.sample()
    with pytest.raises(ValueError, match="ended after 3 steps in which no agent was observed to act"):
        troupe.sample()
    assert troupe.sample().env_steps() == 3
