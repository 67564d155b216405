"""The host of multi-agent envs: dicts in, dicts out; only an env that violates the API fails."""

import pytest

from swath.errors import BadAnswer
from swath.rollout.hosts.gymnasium import MultiAgentHost
from swath.rollout_workers import MultiAgentEnv

OVER = {"__all__": True}
GOES_ON = {"__all__": False}


class ScriptedEnv(MultiAgentEnv):
    """An env with a script: one agent that sees 0 at a reset.

    Args:
        steps: the result of each step; an exception is raised.
    """

    def __init__(self, *steps):
        self.steps, self.actions, self.seeds = list(steps), [], []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return {"a": 0}, {"a": {"begun": True}}

    def step(self, action_dict):
        self.actions.append(action_dict)
        result = self.steps.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


def result(observation=1, over=GOES_ON):
    return {"a": observation}, {"a": 1.0, "b": 0.5}, dict(over), dict(GOES_ON), {"a": {"at": observation}}


def test_actions_and_observations_are_one_leaf_of_dicts_and_rewards_are_summed_over_agents():
    envs = [ScriptedEnv(result(3)), ScriptedEnv(result(4, over=OVER))]
    host = MultiAgentHost(envs)
    assert host.reset_all([7, 8]) == [[{"a": 0}, {"a": 0}]]
    assert ([env.seeds for env in envs], host.seed_of(1)) == ([[7], [8]], 8)
    assert [host.info_of(env) for env in (0, 1)] == [{"a": {"begun": True}}] * 2
    step = host.step([[{"a": 1}, {}], "ignored"])
    assert [env.actions for env in envs] == [[{"a": 1}], [{}]]
    assert step.observation == [[{"a": 3}, {"a": 4}]]
    assert step.reward.tolist() == [1.5, 1.5]
    assert (list(step.ends), step.void, step.failed) == ([(1, True, False)], (), [])
    assert step.info[0]["rewards"] == {"a": 1.0, "b": 0.5}
    assert step.info[1]["terminateds"] == OVER
    assert (step.info[1]["truncateds"], step.info[1]["infos"]) == (GOES_ON, {"a": {"at": 4}})


@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        (RuntimeError("broke"), RuntimeError, "broke"),
        (({}, {}, {}, GOES_ON, {}), BadAnswer, "terminateds of [] without '__all__'"),
        (({"a": 0}, {}, GOES_ON, GOES_ON, {"b": {}}), BadAnswer, "infos of ['b'], but observations of ['a']"),
        (({"a": 0}, 1.0, GOES_ON, GOES_ON, {}), BadAnswer, "rewards=1.0; it must be a dict by agent"),
        (({"a": 0}, {}, GOES_ON, GOES_ON, {"a": None}), BadAnswer, "infos['a']=None; an info is a dict"),
        (
            ({"a": 0}, {"a": None}, GOES_ON, GOES_ON, {}),
            BadAnswer,
            "the reward None of agent 'a'; it must be one number",
        ),
        (({"a": 0}, {"a": 1e39, "b": -1e39}, GOES_ON, GOES_ON, {}), BadAnswer, "the reward 1e+39 of agent 'a', which"),
        (({"a": 0}, {}, {**GOES_ON, "a": "no"}, GOES_ON, {}), BadAnswer, "terminateds['a']='no'; it must be True or"),
        (3, BadAnswer, "unpack"),
    ],
)
def test_what_breaks_in_one_env_or_in_what_it_returns_names_that_env_and_the_others_step(returned, error, text):
    host = MultiAgentHost([ScriptedEnv(returned), ScriptedEnv(result(4))])
    host.reset_all()
    step = host.step([[{}, {}]])
    ((env, raised),) = step.failed
    assert (env, type(raised)) == (0, error)
    assert text in str(raised)
    assert ("step(actions) ->" in str(raised)) == (error is BadAnswer)
    assert step.observation[0] == [{"a": 0}, {"a": 4}]
    assert step.reward.tolist() == [0.0, 1.5]
