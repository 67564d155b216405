"""The small envs under the names by which users of RLlib know them."""

import gymnasium as gym
import numpy as np
import pytest

from agents_protocol import check_reset, check_step
from swath.testing import envs


def play(env, steps=100, *, seed=None):
    """Every step of a multi-agent env until it is over, checked: (acting agents, what the step returned)."""
    obs, infos = env.reset(seed=seed)
    check_reset(obs, infos)
    ended = set()
    for _ in range(steps):
        acting = {agent: 0 for agent in obs if agent not in ended}
        step = env.step(acting)
        check_step(step)
        yield list(acting), step
        obs, _, terminateds, truncateds, _ = step
        ended |= {agent for flags in (terminateds, truncateds) for agent, over in flags.items() if over}
        if "__all__" in ended:
            return


def one_episode(env):
    rows = [env.reset(seed=9)]
    while len(rows) == 1 or not (rows[-1][2] or rows[-1][3]):
        rows.append(env.step(env.action_space.sample()))
    return rows


@pytest.mark.parametrize(
    ("env", "seen", "paid"),
    [
        (envs.MockEnv(3), [0, 0, 0, 0], [1, 1, 1]),
        (envs.MockEnv2(3), [0, 1, 2, 3], [100, 100, 100]),
        (envs.MockEnv3(3), [0, 1, 2, 3], [1, 2, 3]),
    ],
)
def test_mock_envs_count(env, seen, paid):
    for rows in (one_episode(env), one_episode(env)):
        assert [row[0] for row in rows] == seen
        assert [row[1] for row in rows[1:]] == paid
        assert [row[2:4] for row in rows[1:]] == [(False, False), (False, False), (True, True)]


def test_a_random_env_draws_from_its_spaces_and_the_same_with_the_same_seed():
    box = gym.spaces.Box(-1, 1, (3,))
    env = envs.RandomEnv({"observation_space": box, "reward_space": gym.spaces.Box(5, 6, ()), "max_episode_len": 30})
    first, again = one_episode(env), one_episode(env)
    assert all(box.contains(row[0]) for row in first)
    assert all(5 <= row[1] <= 6 for row in first[1:])
    assert [row[1:4] for row in first[1:]] == [row[1:4] for row in again[1:]]
    np.testing.assert_array_equal([row[0] for row in first], [row[0] for row in again])


def test_a_mock_vector_env_is_one_that_pretends_to_be_several():
    env = envs.MockVectorEnv(3, mocked_num_envs=4)
    obs, _ = env.vector_reset(seeds=[5, 6, 7, 8])
    np.testing.assert_array_equal(obs, [gym.make("CartPole-v1").reset(seed=5)[0]] * 4)
    assert len({row.tobytes() for row in env.vector_step([0, 1, 0, 1])[0]}) == 4
    env.vector_step([0, 1, 0, 1])
    obs, _, _, truncateds, _ = env.vector_step([1, 0, 0, 1])
    assert truncateds == [True] * 4
    assert {row.tobytes() for row in obs} == {obs[0].tobytes()}
    env.close()


def test_basic_agents_act_together_for_25_steps():
    env = envs.BasicMultiAgent(3)
    for _ in range(2):
        steps = list(play(env))
        assert [acting for acting, _ in steps] == [[0, 1, 2]] * 25
        assert [step[2]["__all__"] for _, step in steps] == [False] * 24 + [True]


def test_agents_in_turn_see_what_came_of_their_last_action_and_are_not_paid_for_their_end():
    env = envs.RoundRobinMultiAgent(5, increment_obs=True)
    steps = list(play(env))
    assert [acting for acting, _ in steps] == [[i % 5] for i in range(25)] + [[]] * 4
    shown = {agent: [(s[0][agent], s[1][agent], s[2][agent]) for _, s in steps if agent in s[0]] for agent in range(5)}
    assert shown[0] == [(1, 100, False), (2, 100, False), (3, 100, False), (4, 100, False), (5, 0, True)]
    assert shown[4][0] == (0, 0, False)
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step({})


def test_agents_come_late_and_leave_early():
    env = envs.FlexAgentsMultiAgent()
    steps = [step for _, step in play(env, seed=0)]
    gone = [{agent for agent, over in terminateds.items() if over} - obs.keys() for obs, _, terminateds, _, _ in steps]
    assert [step[3]["__all__"] for step in steps] == [False] * 49 + [True]
    assert len(set().union(*gone)) > 3
    assert len(set().union(*(step[0] for step in steps))) > 5
    assert steps == [step for _, step in play(env, seed=0)]


def test_now_and_then_no_agent_is_observed_and_some_are_paid_unseen():
    steps = list(play(envs.SometimesZeroAgentsMultiAgent(), 10_000, seed=1))
    assert {0, 1, 2} <= {len(step[0]) for _, step in steps}
    assert any(step[1].keys() - step[0].keys() for _, step in steps)
    assert [sum(agent in acting for acting, _ in steps) for agent in range(3)] == [25] * 3
    assert steps[-1][1][2]["__all__"]
