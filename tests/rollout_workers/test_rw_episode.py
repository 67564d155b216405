"""An episode as users see it, over the tallies of one agent and of many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.rollout_workers import Episode
from swath.rollout_workers.tallies import LONE_AGENT, Board, SharedTally


def by_name(agent_id, episode, worker):
    return f"policy of {agent_id}"


POLICIES = {f"policy of {agent}": object() for agent in (LONE_AGENT, "a", "b", 3)}


def episode_of(tally, mapping=by_name, policies=POLICIES, worker=None):
    return Episode(7, 2, tally, policy_map=policies, policy_mapping_fn=mapping, worker=worker)


def board_after(*rewards, num_envs=3):
    board = Board(num_envs)
    for number, reward in enumerate(rewards):
        row = np.array([reward, 0.0, -reward])
        board.step(np.sign(row), row, [{"step": number, "env": env} for env in range(num_envs)])
    return board


def test_a_lone_agents_episode_is_current_whenever_it_is_read():
    board = Board(3)
    one, other = episode_of(board.of(0)), episode_of(board.of(2))
    assert (one.length, one.total_reward, one.agent_rewards, one.last_info_for()) == (0, 0.0, {}, None)
    for number in (1, 2, 3):
        board.step(np.array([1.0, 0, -1]), np.array([5.0, 0, -5]), [{"step": number}] * 3)
        assert one.length == one.total_env_steps == one.total_agent_steps == number
        assert one.active_env_steps == one.active_agent_steps == number
        assert (one.total_reward, other.total_reward) == (number, -number)
        assert one.agent_rewards == {("agent0", "policy of agent0"): number}
        assert one.tally.raw_reward == 5 * number
        assert one.last_info_for() == one.last_info_for("agent0") == {"step": number}
    assert repr(one) == "<Episode 7 of env 2: 3 steps, 0 agents, reward 3>"


def test_steps_are_active_until_they_are_handed_out():
    board = board_after(1.0, 1.0)
    one = episode_of(board.of(0))
    board.hand_out()
    assert (one.active_env_steps, one.length) == (0, 2)
    board.step(np.zeros(3), np.zeros(3), ())
    assert (one.active_env_steps, one.active_agent_steps, one.length) == (1, 1, 3)


@pytest.mark.parametrize(("terminated", "truncated"), [(True, False), (False, True), (True, True), (False, False)])
def test_a_lone_agent_ends_as_its_env_says(terminated, truncated):
    board = board_after(1.0)
    one, other = episode_of(board.of(1)), episode_of(board.of(0))
    assert not one.is_done()
    board.end([(1, terminated, truncated)])
    for name in ((), ("agent0",)):
        assert (one.is_terminated(*name), one.is_truncated(*name)) == (terminated, truncated)
        assert one.is_done(*name) == (terminated or truncated)
    assert not other.is_done()
    assert not one.is_done("nobody")
    assert one.last_info_for("nobody") is None


@pytest.mark.parametrize("infos", [[{"n": 0}, {"n": 1}], {"n": np.arange(2)}], ids=["of each", "of a vector env"])
def test_an_episode_that_ended_keeps_its_sums_when_the_next_one_begins(infos):
    board = Board(2)
    board.step(np.array([1.0, 2.0]), np.array([10.0, 20.0]), infos)
    board.end([(1, True, False)])
    ended, going_on = episode_of(board.of(1)), episode_of(board.of(0))
    ended.tally.keep()
    board.begin([1])
    following = episode_of(board.of(1))
    board.step(np.array([1.0, 4.0]), np.array([10.0, 40.0]), [{}, {}])
    assert (ended.length, ended.total_reward, ended.tally.raw_reward, ended.is_terminated()) == (1, 2.0, 20.0, True)
    assert (ended.active_env_steps, ended.last_info_for()) == (1, {"n": 1})
    assert (following.length, following.total_reward, following.is_done()) == (1, 4.0, False)
    assert (going_on.length, going_on.total_reward) == (2, 2.0)


def test_a_new_episode_has_no_info_of_the_one_before():
    board = board_after(1.0)
    board.begin([1])
    assert episode_of(board.of(1)).last_info_for() is None
    assert episode_of(board.of(0)).last_info_for() == {"step": 0, "env": 0}


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.sets(st.integers(0, 2))), max_size=20))
def test_envs_that_made_no_transition_are_not_counted(steps):
    board, counts, sums = Board(3), [0, 0, 0], [0.0, 0.0, 0.0]
    for rewards, but in steps:
        board.step(np.array(rewards), np.array(rewards), (), but=sorted(but))
        for env in {0, 1, 2} - but:
            counts[env] += 1
            sums[env] += rewards[env]
    assert [episode_of(board.of(env)).length for env in range(3)] == board.active.tolist() == counts
    assert board.reward.tolist() == board.raw_reward.tolist() == sums


def test_rewards_of_many_agents_are_summed_by_agent_and_policy():
    tally = SharedTally()
    one = episode_of(tally)
    for reward in (1, 2):
        tally.step()
        tally.credit("a", reward, 10 * reward)
    tally.step()
    tally.credit(3, np.float32(0.5), 5.0)
    assert (one.length, one.total_env_steps, one.total_agent_steps) == (3, 3, 3)
    assert one.agent_rewards == {("a", "policy of a"): 3.0, (3, "policy of 3"): 0.5}
    assert (one.total_reward, tally.raw_reward) == (3.5, 35.0)
    tally.hand_out()
    tally.step()
    assert (one.active_env_steps, one.active_agent_steps, one.total_agent_steps) == (1, 0, 3)


def test_agents_end_one_by_one_and_are_told_apart():
    tally = SharedTally()
    one = episode_of(tally)
    assert not one.is_done("a")
    tally.mark("a", terminated=True, truncated=False)
    tally.mark("b", terminated=False, truncated=True)
    tally.tell({"a": {"x": 1}})
    assert [(one.is_terminated(name), one.is_truncated(name), one.is_done(name)) for name in ("a", "b", 3)] == [
        (True, False, True), (False, True, True), (False, False, False),
    ]  # fmt: skip
    assert (one.last_info_for("a"), one.last_info_for("b")) == ({"x": 1}, None)


def test_agents_are_numbered_in_the_order_in_which_they_appear():
    one = episode_of(SharedTally())
    assert [one.agent_index(name) for name in ("b", 3, "b", "a")] == [0, 1, 0, 2]
    assert one.get_agents() == ["b", 3, "a"]


def test_a_mapping_function_is_asked_once_per_agent_and_told_episode_and_worker():
    asked, worker = [], object()

    def mapping(agent_id, episode, worker):
        asked.append((agent_id, episode, worker))
        return by_name(agent_id, episode, worker)

    one = episode_of(SharedTally(), mapping, worker=worker)
    assert [one.policy_for(name) for name in ("a", "b", "a")] == ["policy of a", "policy of b", "policy of a"]
    assert asked == [("a", one, worker), ("b", one, worker)]


def test_a_bound_agent_keeps_its_policy_when_that_is_removed_or_the_mapping_changes():
    policies = dict(POLICIES)
    one = episode_of(SharedTally(), policies=policies)
    one.policy_for("a")
    del policies["policy of a"]
    one.policy_mapping_fn = lambda agent_id, episode, worker: "policy of b"
    assert (one.policy_for("a"), one.policy_for("b")) == ("policy of a", "policy of b")


def test_an_unknown_policy_is_named_and_not_remembered():
    answers = iter(["nothing", "policy of b"])
    one = episode_of(SharedTally(), lambda agent_id, episode, worker: next(answers))
    with pytest.raises(KeyError, match=r"gave 'nothing' for agent 'a'; there are \['policy of 3'"):
        one.policy_for("a")
    assert one.policy_for("a") == "policy of b"


@pytest.mark.parametrize("name", ["custom_metrics", "user_data", "hist_data", "media"])
def test_what_users_note_is_each_episodes_own(name):
    one, other = episode_of(SharedTally()), episode_of(SharedTally())
    getattr(one, name)["a"] = [1]
    assert (getattr(one, name), getattr(other, name)) == ({"a": [1]}, {})
