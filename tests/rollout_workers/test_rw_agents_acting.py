"""How policies of several agents are asked, and what envs get of their answers."""

import gymnasium as gym
import numpy as np
from rw_toys import TWO, Agents, Counter, Troupe, by_parity

from mock_envs import BasicMultiAgent, SometimesZeroAgentsMultiAgent


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
