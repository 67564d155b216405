"""From what users hand in to a host."""

import sys

import gymnasium as gym
import pytest

from counting_vector import CountingVectorEnv
from swath.rollout.hosts.sources import Source, build
from swath.testing import Counting, CountingEnv, CountingEnvs, EnvBroke, Fault


def test_atari_without_its_extra_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ImportError, match=r'ale_py is needed for ALE/Pong-v5: pip install "swath\[atari\]"'):
        build(Source("ALE/Pong-v5"))


def test_a_callable_gets_the_keywords_and_nothing_else():
    def make(number, counting):
        return CountingEnv(number, counting)

    host = build(Source(make, {"number": 9, "counting": Counting("discrete")}))
    host.reset_all()
    assert host.env.mark.env == 9
    assert host.spec.observation[0].shape == ()


def test_an_instance_is_used_itself_and_its_copies_are_others():
    env = CountingEnv(4)
    host = build(Source(env, copies=3))
    host.reset_all()
    assert host.env[0] is env
    assert len({id(each) for each in host.env}) == 3
    assert [each.mark.env for each in host.env] == [4, 4, 4]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (lambda: Source(3), TypeError, "an env source is of type int; it must be a gymnasium id, a callable"),
        (lambda: Source(None), TypeError, "an env source is of type NoneType"),
        (lambda: Source(CountingEnv, copies=0), ValueError, "envs_per_worker=0 must be at least 1"),
        (lambda: Source(CountingEnv, copies=True), ValueError, "envs_per_worker=True is of type bool"),
        (lambda: Source(CountingEnv, copies=0, copies_name="n_envs"), ValueError, "n_envs=0"),
        (lambda: Source(CountingEnv(), {"number": 3}), ValueError, "create_env_kwargs are for a callable or an id"),
        (lambda: Source(CountingVectorEnv(2), copies=3), ValueError, "copies|envs_per_worker=3 .* batched already"),
        (lambda: Source(lambda: None), TypeError, "returned None; it must return a gymnasium env"),
        (lambda: Source(lambda: 3), TypeError, "returned int"),
        (lambda: Source("NoSuchEnv-v0"), gym.error.Error, "NoSuchEnv"),
        (lambda: Source(CountingEnvs(faults={0: [Fault("build_nothing")]})), TypeError, "returned None"),
    ],
)
def test_what_is_no_source_is_an_error(source, error, message):
    with pytest.raises(error, match=message):
        build(source())


def test_an_error_of_the_maker_leaves_as_itself_with_a_note():
    with pytest.raises(EnvBroke) as caught:
        build(Source(CountingEnvs(faults={1: [Fault("raise_at_build")]}), copies=2))
    assert "raised by the env source" in caught.value.__notes__[0]
