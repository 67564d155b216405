"""The loop: episodes that begin, end, are cut, and envs that fail."""

import pytest
from gymnasium.vector import AutoresetMode
from rollout_toys import Constant, Forgiving, drawn, rules_of, stage_of

from counting_vector import CountingVectorEnv
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.vector import VectorHost
from swath.testing import ENDLESS, Counting, CountingEnv, Fault, Script

LONG = Counting(script=Script((ENDLESS,)))
MODES = list(AutoresetMode)


def listed(faults=None, counting=LONG, n=3):
    return EnvListHost([CountingEnv(i, counting, (faults or {}).get(i, ())) for i in range(n)])


def marks(leaf):
    return [tuple(map(int, row[1:])) for row in leaf]


def told(step):
    """(episode, step) before and after, per env."""
    return marks(step.observation[0]), marks(step.next_observation[0])


# ---- episodes


def test_an_episode_that_reaches_the_limit_is_truncated_and_the_next_one_begins():
    host = listed()
    policy = Constant(host.spec)
    played = drawn(host, policy, 5, rules=rules_of(host, limit=2))
    everyone = [(0, False, True), (1, False, True), (2, False, True)]
    assert [list(step.ended) for step in played] == [[], everyone, [], everyone, []]
    assert told(played[1])[1] == [(0, 2)] * 3
    assert told(played[2])[0] == [(1, 0)] * 3
    assert policy.begun == [[0, 1, 2], [0, 1, 2]]


def test_who_begins_no_other_episode_retires_and_is_stepped_no_more():
    host = listed(counting=Counting(script=Script((2,), ("terminated",))))
    asked = []

    def begin(envs):
        asked.append(list(envs))
        return [env for env in envs if env != 1], None

    drawn(host, Constant(host.spec), 5, rules=rules_of(host, begin=begin))
    assert asked == [[0, 1, 2], [0, 2]]
    assert [env.mark[1:] for env in host.env] == [(2, 1), (0, 2), (2, 1)]


def test_a_new_generator_goes_on_where_the_last_step_was_left():
    host = listed(counting=Counting(script=Script((2,), ("terminated",))), n=1)
    policy, stage, rules = Constant(host.spec), stage_of(host), rules_of(host)
    first = drawn(host, policy, 2, stage, rules)
    second = drawn(host, policy, 1, stage, rules)
    assert told(first[1])[1] == [(0, 2)]
    assert told(second[0]) == ([(1, 0)], [(1, 1)])


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_step_limit_cuts_episodes_of_vector_envs_that_can_reset_single_envs(mode):
    from gymnasium.vector import SyncVectorEnv

    counting = Counting(script=Script((2, 5), ("terminated",)))
    fns = [lambda i=i: CountingEnv(i, counting) for i in range(2)]
    host = VectorHost(SyncVectorEnv(fns, autoreset_mode=mode))
    ends = []
    for step in drawn(host, Constant(host.spec), 14, rules=rules_of(host, limit=3)):
        before, after = told(step)
        for env in range(2):
            if env not in step.void:
                assert after[env] == (before[env][0], before[env][1] + 1)
                assert after[env][1] <= 3
        ends += [(after[env][1], terminated, truncated) for env, terminated, truncated in step.ended]
    assert set(ends) == {(2, True, False), (3, False, True)}


# ---- faults


def test_a_forgiven_env_begins_anew_and_makes_its_row_the_failed_step_leaves_none():
    host, forgiving = listed({1: [Fault("raise", step=3)]}), Forgiving()
    policy = Constant(host.spec)
    played = drawn(host, policy, 4, rules=rules_of(host, forgive=forgiving))
    assert [list(step.cut) for step in played] == [[], [], [1], []]
    assert told(played[1])[1] == [(0, 2)] * 3
    assert told(played[2]) == ([(0, 2), (1, 0), (0, 2)], [(0, 3), (1, 1), (0, 3)])
    assert told(played[3]) == ([(0, 3), (1, 1), (0, 3)], [(0, 4), (1, 2), (0, 4)])
    assert forgiving.raised == [(1, "env 1 raised at step 3 of episode 0")]
    assert (policy.rewound, policy.begun) == (1, [[1]])


def test_resets_between_episodes_are_forgiven_up_to_twice():
    counting = Counting(script=Script((2,), ("terminated",)))
    host, forgiving = listed({1: [Fault("raise_at_reset", episode=1, times=2)]}, counting), Forgiving()
    played = drawn(host, Constant(host.spec), 3, rules=rules_of(host, forgive=forgiving))
    assert told(played[2])[0][1] == (1, 0)
    assert [list(step.cut) for step in played] == [[], [], []]
    assert len(forgiving.raised) == 2
    host = listed({1: [Fault("raise_at_reset", episode=1, times=3)]}, counting)
    with pytest.raises(EnvRaised):
        drawn(host, Constant(host.spec), 3, rules=rules_of(host, forgive=Forgiving()))


# ---- vector envs that fail


class Broken:
    """Makes counting vector envs; the first of them break as they are told to."""

    def __init__(self, mode, *faults, counting=None):
        self.mode, self.faults = mode, list(faults)
        self.counting = counting or Counting(script=Script((ENDLESS,)))
        self.made = []

    def __call__(self):
        faults = self.faults.pop(0) if self.faults else {}
        self.made.append(CountingVectorEnv(2, self.counting, autoreset_mode=self.mode, faults=faults))
        return self.made[-1]

    def host(self):
        return VectorHost(self(), lambda: [self()])


def test_a_vector_env_whose_reset_between_episodes_fails_is_built_anew_and_the_other_episodes_are_cut():
    counting = Counting(script=Script((2, 5), ("terminated",)))
    maker = Broken(AutoresetMode.DISABLED, {0: [Fault("raise_at_reset", episode=1)]}, counting=counting)
    host, forgiving = maker.host(), Forgiving()
    policy = Constant(host.spec)
    played = drawn(host, policy, 4, rules=rules_of(host, forgive=forgiving))
    assert [list(step.cut) for step in played] == [[], [], [1], []]
    assert list(played[1].ended) == [(0, True, False)]
    assert told(played[2]) == ([(0, 0)] * 2, [(0, 1)] * 2)
    assert len(maker.made) == 2
    assert policy.begun == [[0, 1]]
