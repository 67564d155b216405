"""From what users hand in to a host."""

import sys

import gymnasium as gym
import pytest

from counting_vector import CountingVectorEnv
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.sources import Source, build
from swath.rollout.hosts.vector import VectorHost
from swath.testing import Counting, CountingEnv, CountingEnvs, EnvBroke, Fault


def test_an_id_is_one_bare_env():
    host = build(Source("CartPole-v1", {"max_episode_steps": 7}))
    assert isinstance(host, EnvListHost)
    assert host.spec.batch_shape == ()
    assert host.env.spec.max_episode_steps == 7
    host.close()


def test_an_id_with_copies_is_a_batch():
    host = build(Source("CartPole-v1", copies=3))
    assert host.spec.batch_shape == (3,)
    assert len({id(env) for env in host.env}) == 3
    host.close()


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    module = """
import gymnasium
gymnasium.register(
    "Registered-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9
)
"""
    (tmp_path / "module_that_registers.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    host = build(Source("module_that_registers:Registered-v0"))
    assert host.env.spec.max_episode_steps == 9
    host.close()
    del gym.registry["Registered-v0"]


def test_atari_registers_itself():
    pytest.importorskip("ale_py")
    host = build(Source("ALE/Pong-v5", {"frameskip": 4}))
    assert host.reset_all([1])[0].shape == (1, 210, 160, 3)
    host.close()


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


def test_a_vector_env_is_stepped_as_it_is_and_can_be_built_anew():
    host = build(Source(lambda: CountingVectorEnv(2)))
    assert isinstance(host, VectorHost)
    first = host.env
    host.rebuild()
    assert host.env is not first
    assert first.closed


def test_an_instance_is_used_itself_and_its_copies_are_others():
    env = CountingEnv(4)
    host = build(Source(env, copies=3))
    host.reset_all()
    assert host.env[0] is env
    assert len({id(each) for each in host.env}) == 3
    assert [each.mark.env for each in host.env] == [4, 4, 4]


def test_an_instance_that_cannot_be_copied_is_a_type_error_with_the_way_out():
    env = CountingEnv()
    env.handle = (value for value in ())
    with pytest.raises(TypeError, match=r"cannot be copied .* pass a callable that builds it"):
        build(Source(env, copies=2))


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (lambda: Source(3), TypeError, "an env source is of type int; it must be a gymnasium id, a callable"),
        (lambda: Source(None), TypeError, "an env source is of type NoneType"),
        (lambda: Source(CountingEnv, copies=0), ValueError, "envs_per_worker=0 must be at least 1"),
        (lambda: Source(CountingEnv, copies=True), ValueError, "envs_per_worker=True is of type bool"),
        (lambda: Source(CountingEnv, copies=0, copies_name="n_envs"), ValueError, "n_envs=0"),
        (lambda: Source(CountingEnv(), {"number": 3}), ValueError, "create_env_kwargs go to a callable or an id"),
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
    assert "raised while the env source" in caught.value.__notes__[0]
