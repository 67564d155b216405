"""An episode as users see it, over the tallies of one agent and of many."""

import numpy as np
import pytest

from swath.rollout_workers import Episode
from swath.rollout_workers.episode import LONE_AGENT, Board, SharedTally


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
