"""The contract suite as users run it: good envs pass, bad ones fail with a message, a forgotten fixture says so."""

import pytest

pytest_plugins = ["pytester"]

MY_TESTS = """
import gymnasium as gym
import numpy as np
import pytest
from swath.testing import CollectionContract


class MyEnv(gym.Env):
    observation_space = gym.spaces.Box(-9, 9, (2,))
    action_space = gym.spaces.Discrete(2)
    drift = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2).astype(np.float32) + {drift}
        {changed}.drift += 1
        self.t = 0
        return self.state.copy(), {{}}

    def step(self, action):
        self.state += action - 0.5
        self.t += 1
        return self.state.copy(), float(self.state.sum()), False, self.t == 7, {{}}


class TestCollecting(CollectionContract):
    @pytest.fixture
    def make_env(self):
        return MyEnv


class TestForgotten(CollectionContract):
    pass
"""


@pytest.fixture
def run(pytester):
    def run(**holes):
        pytester.makepyfile(MY_TESTS.format(**holes))
        return pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-p", "no:cov")

    return run


def test_a_good_env_keeps_the_contracts_and_a_forgotten_fixture_says_what_to_override(run):
    result = run(drift="0", changed="self")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == 8
    assert outcomes["errors"] == 9
    assert "failed" not in outcomes
    result.stdout.fnmatch_lines(["*override the fixture make_env with a function that builds the env*"])


def test_an_env_that_ignores_its_seed_is_found_out(run):
    result = run(drift="MyEnv.drift", changed="MyEnv")
    result.stdout.fnmatch_lines(["FAILED*::test_the_same_seed_gives_the_same_data*"])
    result.stdout.fnmatch_lines(["FAILED*test_frames_are_those_of_stepping_by_hand*"])
    assert result.parseoutcomes()["passed"] >= 5
