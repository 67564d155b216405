"""How policies of several agents are asked, and what envs get of their answers."""

import gymnasium as gym
import numpy as np
import pytest
from agent_toys import Counter, Troupe

from mock_envs import BasicMultiAgent, SometimesZeroAgentsMultiAgent
from swath.rollout_workers import MultiAgentEnv

TWO = {"p0": Counter, "p1": Counter}


def by_parity(agent, episode):
    return f"p{agent % 2}"


class Spaced(MultiAgentEnv):
    """Agents that see numbers which grow with every step of any env; keeps the actions.

    Args:
        action_space: of each agent.
        num: how many agents.
        length: of an episode.
    """

    def __init__(self, action_space=None, num=2, length=5):
        self.agents = list(range(num))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = action_space or gym.spaces.Discrete(3)
        self.length, self.got = length, []
        self.seen = 0
        super().__init__()

    def _see(self):
        self.seen += len(self.agents)
        return {agent: np.array([self.seen + agent], np.float32) for agent in self.agents}

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self._see(), {}

    def step(self, action_dict):
        self.got.append(action_dict)
        self.at += 1
        flags = {"__all__": self.at == self.length}
        return self._see(), dict.fromkeys(self.agents, 1.0), flags, {"__all__": False}, {}


def test_each_policy_is_asked_once_per_step_for_all_its_agents_in_all_envs_and_only_if_one_is_due():
    troupe = Troupe(lambda: BasicMultiAgent(5), 4, TWO, by_parity, rollout_fragment_length=30)
    troupe.sample()
    for pid, rows in (("p0", 12), ("p1", 8)):
        assert [asked.shape for asked in troupe.policy_map[pid].asked] == [(rows, 2)] * 30
    troupe = Troupe(lambda: SometimesZeroAgentsMultiAgent(2), 1, TWO, by_parity, rollout_fragment_length=60)
    troupe.sample()
    assert all(len(policy.asked) < 60 for policy in troupe.policy_map.values())


def test_each_agent_gets_the_action_that_was_answered_to_its_observation():
    troupe = Troupe(lambda: Spaced(num=3), 2, TWO, by_parity, rollout_fragment_length=5)
    batch = troupe.sample()
    assert troupe.made[0].got[0] == {0: 0, 2: 1, 1: 0}  # the policy answers 0, 1, 0, 1 to its rows
    assert troupe.made[1].got[0] == {0: 0, 2: 1, 1: 1}
    assert batch["p0"]["actions"].tolist() == ([0] * 5 + [1] * 5) * 2
    assert batch["p1"]["actions"].tolist() == [0] * 5 + [1] * 5


def test_nested_actions_stay_nested():
    space = gym.spaces.Dict(move=gym.spaces.Discrete(3), aim=gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,))]))

    class Nested(Counter):
        def compute_actions(self, obs_batch, state_batches=None, **given):
            return [{"move": i, "aim": (np.full(2, 0.25 * i),)} for i in range(len(obs_batch))], [], {}

    troupe = Troupe(lambda: Spaced(space), policies={"default_policy": Nested}, rollout_fragment_length=1)
    batch = troupe.sample()
    assert batch["actions"]["move"].tolist() == [0, 1]
    assert batch["actions"]["aim"][0].tolist() == [[0, 0], [0.25, 0.25]]
    (got,) = troupe.made[0].got
    assert (got[1]["move"], got[1]["aim"][0].tolist()) == (1, [0.25, 0.25])


def test_every_observation_is_pushed_into_the_filter_of_its_policy_once():
    troupe = Troupe(
        lambda: Spaced(num=3), 2, TWO, by_parity, observation_filter="MeanStdFilter", rollout_fragment_length=12
    )
    batch = troupe.sample()
    # 12 steps and three resets of two envs; the observations of ends are pushed, too
    for pid, agents in (("p0", 2), ("p1", 1)):
        stat = troupe.filters[pid].running_stats
        assert stat.num_pushes == (12 + 3) * 2 * agents
    assert abs(batch["p0"]["obs"]).max() < 5
    assert batch["p0"]["new_obs"][:4].tolist() == batch["p0"]["obs"][1:5].tolist()


def test_a_policy_is_shown_what_it_asks_for():
    shown = []

    class Curious(Counter):
        wanted = ("prev_actions", "prev_rewards", "infos", "env_id", "agent_id")

        def compute_actions_from_input_dict(self, input_dict, explore=None, timestep=None, episodes=None, **given):
            shown.append(({name: list(column) for name, column in input_dict.items()}, explore))
            assert [episode.env_id for episode in episodes] == [0, 0, 1, 1]
            return np.arange(len(input_dict["obs"])) + 1, [], {}

    Troupe(lambda: Spaced(num=2), 2, {"default_policy": Curious}, rollout_fragment_length=2).sample(explore=False)
    (first, explore), (second, _) = shown
    assert (explore, first["prev_actions"], second["prev_actions"]) == (False, [0, 0, 0, 0], [1, 2, 3, 4])
    assert (first["prev_rewards"], second["prev_rewards"]) == ([0.0] * 4, [1.0] * 4)
    assert (first["agent_id"], first["env_id"], first["infos"]) == ([0, 1, 0, 1], [0, 0, 1, 1], [{}] * 4)


@pytest.mark.parametrize(
    ("answer", "text"),
    [(0.7, "Odd answered actions of dtype float64"), (np.nan, "which cannot hold nan"), ("a", "actions of dtype <U1")],
)
def test_an_action_that_would_lose_its_fraction_is_refused(answer, text):
    class Odd(Counter):
        def compute_actions(self, obs_batch, state_batches=None, **given):
            self.asked.append(0)
            return [answer if len(self.asked) == 2 else 2.0] * len(obs_batch), [], {}

    troupe = Troupe(Spaced, policies={"default_policy": Odd}, rollout_fragment_length=4)
    with pytest.raises(TypeError) as caught:
        troupe.sample()
    assert text in str(caught.value)
    assert troupe.sample()["actions"].tolist() == [2] * 4 * 2


def test_states_may_be_nested():
    given = []

    class Odd(Counter):
        def get_initial_state(self):
            return [{"some": {"here": np.zeros(3)}}]

        def compute_actions(self, obs_batch, state_batches=None, **_):
            given.append(state_batches[0])
            n = len(obs_batch)
            return np.zeros(n, int), [{"some": {"here": np.ones((n, 3)) * len(given)}}], {}

    class Late(Spaced):
        def _see(self):
            seen = super()._see()
            return seen if self.at else {0: seen[0]}

    troupe = Troupe(Late, policies={"default_policy": Odd}, rollout_fragment_length=4)
    batch = troupe.sample()
    assert [state["some"]["here"][:, 0].tolist() for state in given] == [[0], [1, 0], [2, 2], [3, 3]]
    assert batch["state_out_0"]["some"]["here"][:, 0].tolist() == [1, 2, 3, 4, 2, 3, 4]
    assert batch["state_in_0"]["some"]["here"][:, 0].tolist() == [0, 1, 2, 3, 0, 2, 3]
