"""What `Evaluator` builds, when, and from which forms of an env."""

import random
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from evaluator_toys import PLACES, Named, evaluated, evaluator
from uneven_env import Shifted, UnevenEnv, played

pytestmark = pytest.mark.usefixtures("warm_processes")

UNEVEN = "uneven_env:UnevenEnv-v0"


def several(n):
    return gym.vector.SyncVectorEnv([UnevenEnv] * n, autoreset_mode=gym.vector.AutoresetMode.DISABLED)


FORMS = {
    "an id": (UNEVEN, 1, "everywhere"),
    "an id, several times": (UNEVEN, 3, "everywhere"),
    "a callable": (UnevenEnv, None, "everywhere"),
    "a callable of a vector env": (lambda: several(2), None, "everywhere"),
    "an instance": (UnevenEnv(), None, "thread"),
    "a vector env": (several(2), None, "thread"),
    "a list of ids": ([UNEVEN, UNEVEN], None, "everywhere"),
    "a list of callables, twice": ([UnevenEnv, UnevenEnv], 4, "everywhere"),
    "a list of instances": ([UnevenEnv(), UnevenEnv()], None, "thread"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_envs_of_every_form_give_the_same_numbers(form, place):
    env, num_envs, where = FORMS[form]
    if where == "thread" != place:
        with pytest.raises(ValueError, match="callable"):
            evaluator(place, env=env, num_envs=num_envs)
        return
    result = evaluated(place, env=env, num_envs=num_envs)
    assert [*zip(result.returns, result.lengths, strict=True)] == [played(seed) for seed in result.seeds]
    assert result.seeding == "episode"


def test_tasks_of_a_list_take_turns():
    envs = [lambda: Named("plain"), lambda: Named("double")]
    for num_envs in (2, 4):
        result = evaluated(env=envs, num_envs=num_envs)
        assert result.returns.tolist() == [played(seed)[0] * (1 + i % 2) for i, seed in enumerate(result.seeds)]


def test_instances_are_closed_with_the_evaluator_and_what_was_built_too():
    env = UnevenEnv()
    with evaluator(env=env) as ev:
        ev.evaluate()
        assert not env.closed
    assert env.closed


def test_an_instance_stays_open_where_construction_fails():
    env = UnevenEnv()
    with pytest.raises(ZeroDivisionError):
        evaluator(env=env, policy_factory=lambda: 1 / 0)
    assert not env.closed
    assert env.resets == []


# When ---------------------------------------------------------------------------------------------------------------


def who():
    return threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize(
    ("env", "policy", "at_once"),
    [
        (Named, "factory", False),
        ([Named], "factory", False),
        (Named, "policy", True),
        (UnevenEnv(), "factory", True),
    ],
    ids=str,
)
def test_a_thread_builds_at_once_unless_env_and_policy_are_both_to_be_built(env, policy, at_once):
    events = []

    def factory():
        events.append(("policy", who()))
        return Shifted()

    def make():
        events.append(("env", who()))
        return UnevenEnv()

    env = make if env is Named else [make] if env == [Named] else env
    chosen = {"policy_factory": factory} if policy == "factory" else {"policy": Shifted(), "policy_factory": None}
    with evaluator(env=env, **chosen) as ev:
        before = list(events)
        ev.evaluate()
        ev.evaluate()
    expected = ["env"] * (not isinstance(env, UnevenEnv)) + ["policy"] * (policy == "factory")
    assert events == [(what, at_once) for what in expected], "each once, env first"
    assert before == (events if at_once else [])


FACTORIES = {
    "nothing": (lambda: Shifted(5), 5),
    "env": (lambda env: Shifted(5 if type(env) is Named else 0), 5),
    "another name": (lambda world: Shifted(5 if type(world) is Named else 0), 5),
    "env with a default": (lambda env=None: Shifted(5 if type(env) is Named else 0), 5),
    "env by keyword": (lambda *, env: Shifted(5 if type(env) is Named else 0), 5),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FACTORIES)
def test_factories_get_the_env_if_they_want_one(name, place):
    factory, shift = FACTORIES[name]
    result = evaluated(place, policy_factory=factory, num_envs=2)
    assert result.returns.tolist() == [played(seed, shift)[0] for seed in result.seeds]


def test_factories_draw_the_same_in_every_place_worker_and_life():
    def drawn():
        return Shifted(int(torch.randint(0, 10**5, ())) + int(np.random.randint(10**5)) + random.randrange(10**5))

    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    results = [evaluated(policy_factory=drawn), evaluated(env=UnevenEnv(), policy_factory=drawn)]
    results.append(evaluated("process", policy_factory=drawn, num_workers=2))
    other = evaluated(policy_factory=drawn, seed=1)
    assert len({tuple(result.returns) for result in results}) == 1
    assert tuple(other.returns) != tuple(results[0].returns)
    assert before[0].equal(torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())
