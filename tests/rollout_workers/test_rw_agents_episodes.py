"""Episodes of several agents: who acts for whom until their end, what callbacks see of them, and what is told then."""

import gc
import weakref

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import TWO, Counter, Troupe, by_parity

from mock_envs import BasicMultiAgent
from swath.rollout_workers import MultiAgentEnv


class Paying(MultiAgentEnv):
    """Two agents see 0; what they are paid and who sees it is planned, step by step.

    Args:
        steps: `(who is seen, rewards, who ends)`; the last one ends the episode.
    """

    def __init__(self, *steps):
        self.agents = ["a", "b"]
        self.observation_space, self.action_space = gym.spaces.Box(0, 9, (1,), np.float32), gym.spaces.Discrete(2)
        self.steps = steps
        super().__init__()

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return {"a": np.zeros(1)}, {"a": {"at": 0}}

    def step(self, action_dict):
        seen, rewards, ended = self.steps[self.at]
        self.at += 1
        flags = {**dict.fromkeys(ended, True), "__all__": self.at == len(self.steps)}
        obs = {agent: np.full(1, self.at) for agent in seen}
        return obs, rewards, flags, {"__all__": False}, {agent: {"at": self.at} for agent in seen}


STEPS = (
    ("b", {"a": 1.0, "b": 32.0}, ""),  # a acted and is not seen; b was never seen, what it is paid is part of nothing
    ("", {"a": 2.0, "b": 4.0}, ""),
    ("a", {"a": 8.0}, ""),
    ("", {"b": 16.0}, "b"),  # b ends unseen
    ("", {"a": 64.0, "b": 128.0}, ""),
)


CLIPPED = [(None, [11.0, 64.0, 20.0]), (True, [1.0, 1.0, 1.0]), (20.0, [11.0, 20.0, 20.0])]


@pytest.mark.parametrize(("clip", "rewards"), CLIPPED)
def test_rewards_add_up_until_the_agent_is_seen_ends_or_all_is_over_and_sums_are_clipped(clip, rewards):
    troupe = Troupe(lambda: Paying(*STEPS), rollout_fragment_length=5, clip_rewards=clip)
    batch = troupe.sample()
    assert batch["rewards"].tolist() == rewards
    assert batch["t"].tolist() == [2, 4, 3]
    assert batch["obs"][:, 0].tolist() == [0, 3, 1]
    assert batch["new_obs"][:, 0].tolist() == [3, 3, 1]  # the latest observation stands in for one that never came
    assert batch["terminateds"].tolist() == [False, True, True]
    (told,) = troupe.get_metrics()
    assert (told.episode_reward, told.episode_reward_raw, told.episode_length) == (sum(rewards), 95.0, 5)
    a, b = (("a", "default_policy"), ("b", "default_policy"))
    assert told.agent_rewards == {a: rewards[0] + rewards[1], b: rewards[2]}


def test_the_mapping_is_asked_once_per_agent_and_episode_and_holds_for_it():
    asked = []

    def mapping(agent, episode):
        asked.append((agent, episode.episode_id if episode else None))
        return "p0"

    troupe = Troupe(lambda: BasicMultiAgent(2), 1, TWO, mapping, rollout_fragment_length=30)
    asked.clear()
    batch = troupe.sample()
    first, second = dict.fromkeys(batch["p0"]["eps_id"].tolist())
    assert asked == [(0, first), (1, first), (0, second), (1, second)]
    troupe.set_policy_mapping_fn(lambda agent, episode, **kwargs: "p1")
    batch = troupe.sample()
    assert (batch["p0"].count, batch["p1"].count) == (40, 20)
    assert batch["p1"]["t"].tolist() == [*range(10)] * 2


def test_agents_of_a_policy_that_was_removed_go_on_with_it_until_their_episode_ends():
    troupe = Troupe(lambda: BasicMultiAgent(2), 1, TWO, by_parity, rollout_fragment_length=20)
    troupe.sample()
    removed = troupe.policy_map["p1"]
    troupe.remove_policy(policy_id="p1", policy_mapping_fn=lambda agent, episode, **kwargs: "p0")
    batch = troupe.sample()
    assert (batch["p0"].count, batch["p1"].count) == (35, 5)
    assert batch["p1"]["t"].tolist() == [20, 21, 22, 23, 24]
    assert len(removed.asked) == 25
    batch = troupe.sample()
    assert list(batch.policy_batches) == ["p0"]
    gone = weakref.ref(removed)
    del removed
    gc.collect()
    assert gone() is None


def test_a_policy_that_is_added_under_an_id_to_which_agents_are_bound_ends_their_episodes_and_their_steps_count():
    left = [2 * 30]

    def stop(**kwargs):
        left[0] -= 1
        if left[0] == 0:
            raise OSError("no room")

    config = {"rollout_fragment_length": 20, "batch_mode": "complete_episodes"}
    config["callback_functions"] = {"on_episode_step": stop}
    troupe = Troupe(lambda: BasicMultiAgent(2), 2, TWO, by_parity, **config)
    troupe.sample()
    with pytest.raises(OSError, match="no room"):
        troupe.sample()
    troupe.remove_policy(policy_id="p1")
    troupe.add_policy("p1", Counter)
    batch = troupe.sample()
    assert troupe.counters["env_steps_discarded"] == 2 * 5
    assert (batch.env_steps(), batch["p0"]["t"].tolist()) == (50, [*range(25)] * 2)
