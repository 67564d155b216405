"""What becomes of the rows of several agents before they are handed out: post-processing, and what is left out."""

import numpy as np
import pytest
from rw_toys import TWO, Agents, Counter, Troupe, by_parity

from mock_envs import BasicMultiAgent, MultiAgentCartPole
from swath.rollout_workers import DefaultCallbacks, MultiAgentBatch
from swath.rollout_workers.policies.ppo import PPOTorchPolicy


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
