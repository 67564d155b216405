"""Several agents: who acts for whom until an episode ends, what policies are asked, what callbacks see."""

import gc
import weakref

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import TWO, Agents, Counter, Troupe, by_parity

from mock_envs import BasicMultiAgent, SometimesZeroAgentsMultiAgent
from swath.rollout_workers import MultiAgentEnv


def test_each_policy_is_asked_once_per_step_for_all_its_agents_in_all_envs_and_only_if_one_is_due():
    troupe = Troupe(lambda: BasicMultiAgent(5), 4, TWO, by_parity, rollout_fragment_length=30)
    troupe.sample()
    for pid, rows in (("p0", 12), ("p1", 8)):
        assert [asked.shape for asked in troupe.policy_map[pid].asked] == [(rows, 2)] * 30
    troupe = Troupe(lambda: SometimesZeroAgentsMultiAgent(2), 1, TWO, by_parity, rollout_fragment_length=60)
    troupe.sample()
    assert all(len(policy.asked) < 60 for policy in troupe.policy_map.values())


def test_nested_actions_stay_nested():
    space = gym.spaces.Dict(move=gym.spaces.Discrete(3), aim=gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,))]))

    class Nested(Counter):
        def compute_actions(self, obs_batch, state_batches=None, **given):
            return [{"move": i, "aim": (np.full(2, 0.25 * i),)} for i in range(len(obs_batch))], [], {}

    troupe = Troupe(lambda: Agents(action_space=space), policies={"default_policy": Nested}, rollout_fragment_length=1)
    batch = troupe.sample()
    assert batch["actions"]["move"].tolist() == [0, 1]
    assert batch["actions"]["aim"][0].tolist() == [[0, 0], [0.25, 0.25]]
    (got,) = troupe.made[0].got
    assert (got[1]["move"], got[1]["aim"][0].tolist()) == (1, [0.25, 0.25])


def test_every_observation_is_pushed_into_the_filter_of_its_policy_once():
    troupe = Troupe(
        lambda: Agents(3), 2, TWO, by_parity, observation_filter="MeanStdFilter", rollout_fragment_length=12
    )
    batch = troupe.sample()
    # 12 steps and three resets of two envs; the observations of ends are pushed, too
    for pid, agents in (("p0", 2), ("p1", 1)):
        stat = troupe.filters[pid].running_stats
        assert stat.num_pushes == (12 + 3) * 2 * agents
    assert abs(batch["p0"]["obs"]).max() < 5
    assert batch["p0"]["new_obs"][:4].tolist() == batch["p0"]["obs"][1:5].tolist()


def test_states_may_be_nested():
    given = []

    class Odd(Counter):
        def get_initial_state(self):
            return [{"some": {"here": np.zeros(3)}}]

        def compute_actions(self, obs_batch, state_batches=None, **_):
            given.append(state_batches[0])
            n = len(obs_batch)
            return np.zeros(n, int), [{"some": {"here": np.ones((n, 3)) * len(given)}}], {}

    def come_late(env, answer):
        answer[0] = answer[0] if env.at else {0: answer[0][0]}

    troupe = Troupe(lambda: Agents(hook=come_late), policies={"default_policy": Odd}, rollout_fragment_length=4)
    batch = troupe.sample()
    assert [state["some"]["here"][:, 0].tolist() for state in given] == [[0], [1, 0], [2, 2], [3, 3]]
    assert batch["state_out_0"]["some"]["here"][:, 0].tolist() == [1, 2, 3, 4, 2, 3, 4]
    assert batch["state_in_0"]["some"]["here"][:, 0].tolist() == [0, 1, 2, 3, 0, 2, 3]


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
