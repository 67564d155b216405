"""The step limit against one that counts every step of every env."""

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from hypothesis import given
from hypothesis import strategies as st

from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.loop import StepLimit


class Counted:
    """The same by counting: steps made of each episode, `None` where none is going on."""

    def __init__(self, limits):
        self.limits, self.steps = limits, [0] * len(limits)

    def restart(self, envs):
        for env in envs:
            self.steps[env] = 0

    def stop(self, envs):
        for env in envs:
            self.steps[env] = None

    def tick(self):
        self.steps = [None if steps is None else steps + 1 for steps in self.steps]
        return self._expired(range(len(self.steps)))

    def _expired(self, envs):
        expired = [env for env in envs if self.steps[env] is not None and self.steps[env] == self.limits[env]]
        self.stop(expired)
        return expired


@given(st.data())
def test_it_names_who_reaches_the_limit_as_counting_does(data):
    limits = data.draw(st.lists(st.none() | st.integers(1, 5), min_size=1, max_size=4))
    envs = st.sets(st.integers(0, len(limits) - 1)).map(sorted)
    fast, slow = StepLimit(limits), Counted(limits)
    for action in data.draw(st.lists(st.sampled_from(["tick", "tick", "tick", "restart", "stop"]), max_size=40)):
        if action == "tick":
            assert list(fast.tick()) == slow.tick()
        else:
            chosen = data.draw(envs)
            getattr(fast, action)(chosen)
            getattr(slow, action)(chosen)


def test_the_limits_of_envs_hold_where_they_are_less_than_what_is_asked_for():
    envs = [gym.make("CartPole-v1", max_episode_steps=most) for most in (2, 5)]
    limit = StepLimit.of(EnvListHost([*envs, CartPoleEnv()]).spec, 3)
    assert [list(limit.tick()) for _ in range(3)] == [[], [0], [1, 2]]
