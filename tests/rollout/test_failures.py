"""An env that raises, under every failure policy, in envs that step alone and in envs that only step together."""

import itertools

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from rollout_toys import Constant

from counting_vector import CountingVectorEnv
from swath.options import Restarts
from swath.rollout.failures import Failures, VoidRows
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.vector import VectorHost
from swath.rollout.loop import Rules, Stage, StepLimit, go_on, steps
from swath.testing import ENDLESS, Counting, CountingEnv, EnvBroke, Fault, Script

LONG = Counting(script=Script((ENDLESS,)))
BREAKS = {1: [Fault("raise", step=3)]}
ONCE = Restarts(1, backoff_s=0.0)


class Maker:
    """Makes hosts; only the envs of the first one break."""

    def __init__(self, mode):
        self.mode, self.made = mode, 0

    def host(self):
        return (
            EnvListHost(self.envs(), make=self.envs)
            if self.mode is None
            else VectorHost(self.vector(), lambda: [self.vector()])
        )

    def envs(self):
        return [CountingEnv(env, LONG, faults.get(env, ())) for faults in [self.faults()] for env in range(2)]

    def vector(self):
        return CountingVectorEnv(2, LONG, autoreset_mode=self.mode, faults=self.faults())

    def faults(self):
        self.made += 1
        return BREAKS if self.made == 1 else {}


@pytest.fixture(params=[None, *AutoresetMode], ids=lambda mode: "list" if mode is None else mode.name)
def maker(request):
    return Maker(request.param)


def played(host, failures, n_steps):
    n = host.spec.num_envs
    blank = [np.zeros((n, *leaf.shape), leaf.dtype) for leaf in host.spec.observation]
    rules, stage = Rules(StepLimit.of(host.spec), go_on, failures), Stage(blank, list(range(n)))
    return list(itertools.islice(steps(host, Constant(host.spec), stage, rules), n_steps))


def voids(host, restarts):
    """The policy of rollout workers; only envs that step alone can be renewed alone."""
    renew = (lambda env: host.renew(env, lambda: CountingEnv(env, LONG))) if host.spec.alone else None
    return VoidRows(restarts, renew, lambda env: 70 + env)


def test_a_failure_is_raised(maker):
    host = maker.host()
    with pytest.raises(EnvRaised) as caught:
        played(host, Failures(), 3)
    assert isinstance(caught.value.cause, EnvBroke)
    assert maker.made == 1


def test_a_step_that_is_made_again_gives_every_env_its_row(maker):
    host, heard = maker.host(), []
    made = played(host, Failures(2, lambda env, error: heard.append(type(error))), 4)
    together = maker.mode is not None
    assert [list(step.void) for step in made] == [[]] * 4
    assert [list(step.cut) for step in made] == [[], [], [0, 1] if together else [1], []]
    assert (heard, maker.made) == ([EnvBroke], 1 + together)


@pytest.mark.parametrize("restarts", [None, ONCE])
def test_a_row_that_is_void_ends_its_episode_and_the_next_one_begins(maker, restarts):
    host = maker.host()
    failures, together = voids(host, restarts), maker.mode is not None
    made = played(host, failures, 5)
    failed = [0, 1] if together else [1]
    assert [list(step.void) for step in made] == [[], [], failed, [], []]
    assert list(made[2].ended) == [(env, False, True) for env in failed]
    assert [step.next_observation[0][1, -1] for step in made[3:]] == [1, 2]
    assert [env for env, _ in failures.raised] == sorted(failed, key=lambda env: (together, env))
    assert (failures.fatal is None, failures.n_restarts) == (
        (False, 0) if restarts is None else (True, len(failed[:1]))
    )
    if not together:
        assert [step.next_observation[0][0, -1] for step in made] == [1, 2, 3, 4, 5], "the other one goes on"
        assert host.seed_of(1) == (None if restarts is None else 71)


def test_failures_in_a_row_are_not_borne_for_ever():
    host = EnvListHost([CountingEnv(0, LONG, [Fault("raise", episode=episode) for episode in range(9)])])
    failures = VoidRows(Restarts(2, backoff_s=0.0), lambda env: None, lambda env: None)
    made = played(host, failures, 3)
    assert [list(step.void) for step in made] == [[0]] * 3
    assert "failed 3 times in a row" in failures.fatal.cause.__notes__[0]
    waited = VoidRows(Restarts(9, backoff_s=0.5), lambda env: None, lambda env: None)
    pauses = []
    waited.wait = pauses.append
    played(EnvListHost([CountingEnv(0, LONG, [Fault("raise", episode=e) for e in range(3)])]), waited, 4)
    assert pauses == [0.5, 1.0, 2.0]
