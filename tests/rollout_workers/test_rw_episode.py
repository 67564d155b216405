"""An episode as users see it: who acts in it, by which policy."""

import pytest

from swath.rollout_workers import Episode
from swath.rollout_workers.episode import LONE_AGENT
from swath.rollout_workers.sampling.slots import Slots


def by_name(agent_id, episode, worker):
    return f"policy of {agent_id}"


POLICIES = {f"policy of {agent}": object() for agent in (LONE_AGENT, "a", "b", 3)}


def episode_of(mapping=by_name, policies=POLICIES, worker=None):
    return Episode(7, 2, Slots(3), policy_map=policies, policy_mapping_fn=mapping, worker=worker)


def test_agents_are_numbered_in_the_order_in_which_they_appear():
    one = episode_of()
    assert [one.agent_index(name) for name in ("b", 3, "b", "a")] == [0, 1, 0, 2]
    assert one.get_agents() == ["b", 3, "a"]


def test_a_mapping_function_is_asked_once_per_agent_and_told_episode_and_worker():
    asked, worker = [], object()

    def mapping(agent_id, episode, worker):
        asked.append((agent_id, episode, worker))
        return by_name(agent_id, episode, worker)

    one = episode_of(mapping, worker=worker)
    assert [one.policy_for(name) for name in ("a", "b", "a")] == ["policy of a", "policy of b", "policy of a"]
    assert asked == [("a", one, worker), ("b", one, worker)]


def test_a_bound_agent_keeps_its_policy_when_that_is_removed_or_the_mapping_changes():
    policies = dict(POLICIES)
    one = episode_of(policies=policies)
    one.policy_for("a")
    del policies["policy of a"]
    one.policy_mapping_fn = lambda agent_id, episode, worker: "policy of b"
    assert (one.policy_for("a"), one.policy_for("b")) == ("policy of a", "policy of b")


def test_an_unknown_policy_is_named_and_not_remembered():
    answers = iter(["nothing", "policy of b"])
    one = episode_of(lambda agent_id, episode, worker: next(answers))
    with pytest.raises(KeyError, match=r"gave 'nothing' for agent 'a'; there are \['policy of 3'"):
        one.policy_for("a")
    assert one.policy_for("a") == "policy of b"
