"""Multi-agent envs: what the base class fills in, what is checked of every env, and copies as agents."""

import gymnasium as gym
import pytest

from mock_envs import MockEnv, MockEnv2
from swath.rollout_workers import EnvContext, MultiAgentEnv, make_multi_agent, register_env

TWO, THREE = gym.spaces.Discrete(2), gym.spaces.Discrete(3)


class Bare(MultiAgentEnv):
    """Never calls the base class's `__init__`."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def test_agents_are_read_from_the_attributes_that_the_env_has_set():
    for attributes, agents, possible in (
        ({}, [], []),
        ({"agents": ["a", "b"]}, ["a", "b"], ["a", "b"]),
        ({"_agent_ids": {2, 1}}, [1, 2], [1, 2]),
        ({"agents": ["a"], "possible_agents": ["a", "b"]}, ["a"], ["a", "b"]),
    ):
        env = Bare(**attributes)
        MultiAgentEnv.__init__(env)
        assert (env.agents, env.possible_agents, env.get_agent_ids()) == (agents, possible, set(agents))
        assert (env.num_agents, env.max_num_agents) == (len(agents), len(possible))


@pytest.mark.parametrize("kind", ["observation", "action"])
def test_an_agents_space_is_its_own_or_that_of_all(kind):
    by_agent = gym.spaces.Dict({"a": TWO, "b": THREE})
    for attributes, wanted in (
        ({"{}_spaces": {"a": TWO, 1: THREE}, "{}_space": TWO}, (TWO, THREE)),
        ({"{}_space": by_agent}, (TWO, by_agent)),
        ({"{}_space": THREE}, (THREE, THREE)),
        ({}, (None, None)),
    ):
        env = Bare(**{name.format(kind): value for name, value in attributes.items()})
        assert tuple(getattr(env, f"get_{kind}_space")(agent) for agent in ("a", 1)) == wanted


def test_a_reset_of_the_base_class_seeds_and_observes_no_agent():
    env, drawn = Bare(), []
    for _ in range(2):
        assert env.reset(seed=3) == ({}, {})
        drawn.append(env.np_random.random())
        env.reset()
    assert drawn[0] == drawn[1]
    with pytest.raises(NotImplementedError, match="Bare has no step"):
        env.step({})


def test_copies_are_agents_from_0_on_with_the_rest_of_the_config():
    configs = []

    def creator(config):
        configs.append(config)
        return MockEnv2(len(configs))

    config = EnvContext({"num_agents": 3, "a": []}, worker_index=2)
    env = make_multi_agent(creator)(config)
    assert (env.agents, env.possible_agents, env.num_agents) == ([0, 1, 2], [0, 1, 2], 3)
    assert [(dict(creator_config), creator_config.worker_index) for creator_config in configs] == [({"a": []}, 2)] * 3
    assert len({id(creator_config["a"]) for creator_config in [config, *configs]}) == 4
    assert config["num_agents"] == 3
    assert [env.get_observation_space(agent).n for agent in env.agents] == [2, 3, 4]
    assert make_multi_agent(creator)().num_agents == 1


def test_copies_end_one_by_one_and_the_episode_with_the_last():
    lengths = [1, 2]
    env = make_multi_agent(lambda config: MockEnv2(lengths.pop(0)))({"num_agents": 2})
    assert env.reset() == ({0: 0, 1: 0}, {0: {}, 1: {}})
    step = env.step({0: 0, 1: 0})
    assert step[:2] == ({0: 1, 1: 1}, {0: 100.0, 1: 100.0})
    assert step[2:4] == ({0: True, 1: False, "__all__": False},) * 2
    assert env.step({}) == ({}, {}, {"__all__": False}, {"__all__": False}, {})
    assert env.step({1: 0})[2:4] == ({1: True, "__all__": True}, {1: True, "__all__": False})
    env.reset()
    assert env.step({0: 0})[2]["__all__"] is False


class Truncating(MockEnv):
    def step(self, action):
        obs, reward, over, _, info = super().step(action)
        return obs, reward, over and self.config, over and not self.config, info


@pytest.mark.parametrize(("terminates", "flags"), [((True, True), (True, False)), ((True, False), (False, True))])
def test_copies_terminate_if_all_do_and_else_truncate(terminates, flags):
    remaining = list(terminates)
    env = make_multi_agent(lambda config: Truncating(1, remaining.pop(0)))({"num_agents": 2})
    env.reset()
    _, _, terminateds, truncateds, _ = env.step({0: 0, 1: 0})
    assert (terminateds["__all__"], truncateds["__all__"]) == flags


def test_copies_have_different_seeds_and_none_without_a_seed():
    env = make_multi_agent(lambda config: MockEnv2(5))({"num_agents": 4})
    env.reset(seed=7)
    seeds = [copy.rng_seed for copy in env.envs]
    assert (seeds[0], len(set(seeds))) == (7, 4)
    env.reset()
    assert [copy.rng_seed for copy in env.envs] == seeds


def test_copies_are_made_by_id_or_by_name_too():
    register_env("mocks", lambda config: MockEnv(config["length"]))
    assert make_multi_agent("mocks")({"num_agents": 2, "length": 3}).envs[1].episode_length == 3
    env = make_multi_agent("CartPole-v1")({"num_agents": 2, "max_episode_steps": 3})
    assert env.envs[1].spec.max_episode_steps == 3
    env.close()


def test_a_copy_whose_time_limit_was_changed_obeys_it_from_its_next_episode_on():
    env = make_multi_agent("Pendulum-v1")({"num_agents": 2})
    assert env.envs[1].spec.max_episode_steps == 200
    for limit in (2, 3):
        env.envs[1].set_wrapper_attr("_max_episode_steps", limit)
        env.reset()
        actions = {agent: env.action_spaces[agent].sample() for agent in (0, 1)}
        assert [env.step(actions)[3][1] for _ in range(limit)] == [False] * (limit - 1) + [True]
    env.close()
