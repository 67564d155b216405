"""Parameters and methods of a `RolloutWorker`: what each does and refuses, where no other test says it."""

import platform
import socket

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import DEFAULT, bare, learner, mock, two

from mock_envs import MockEnv
from swath.errors import Closed
from swath.rollout_workers import AlgorithmConfig, RolloutWorker, SampleBatch
from swath.testing.counting import CountingEnvs
from swath.testing.faults import Fault

VECTOR = {"env_creator": lambda _: gym.vector.SyncVectorEnv([lambda: MockEnv(5)] * 3)}
SHARDS = {"config": {"input_": "dataset"}, "worker_index": 1, "dataset_shards": [[]]}
REFUSED = [
    (mock, {"env_creator": lambda _: object()}, TypeError, "env_creator made"),
    (mock, {"config": 3}, TypeError, "config=3"),
    (mock, {"config": {"batch_mode": "some_episodes"}}, ValueError, "batch_mode"),
    (mock, {"worker_index": -1}, ValueError, "worker_index"),
    (bare, {"spaces": None}, ValueError, DEFAULT),
    (mock, {"default_policy_class": None}, ValueError, f"'{DEFAULT}' has no class"),
    (bare, SHARDS, ValueError, r"shards\[1\]; there are 1"),
    (bare, {"dataset_shards": [[]]}, ValueError, "input_='sampler'"),
    (mock, {"tf_session_creator": print}, ValueError, "torch only"),
    (mock, {"config": {"policies": ["a", "b"]}}, ValueError, "which has one agent; give one policy"),
    (mock, {**VECTOR, "config": {"num_envs_per_env_runner": 4}}, ValueError, "=4, but the vector env has 3"),
]


@pytest.mark.parametrize(("make", "wrong", "error", "words"), REFUSED)
def test_an_argument_that_cannot_be_is_refused(make, wrong, error, words):
    with pytest.raises(error, match=words):
        make(**wrong)


def test_a_creator_may_make_no_env_and_its_worker_says_what_it_has():
    spaces = dict.fromkeys([DEFAULT], (gym.spaces.Discrete(2), gym.spaces.Discrete(2)))
    with mock(env_creator=lambda _: None, spaces=spaces, tf_session_creator=None) as worker:
        assert (worker.env, worker.async_env, worker.foreach_env(print)) == (None, None, [])
        assert repr(worker) == "<RolloutWorker 0/0: 0 envs, 1 policies; 0 env steps, version 0>"


def test_apply_and_health():
    with bare() as worker:
        assert worker.apply(lambda own, n, *, m: (own, n, m), 1, m=2) == (worker, 1, 2)
        with pytest.raises(ZeroDivisionError):
            worker.apply(lambda own: 1 / 0)
        assert worker.apply("ping") == worker.ping() == "pong"
        worker.remove_policy()
        with pytest.raises(AssertionError, match="no policy"):
            worker.assert_healthy()
    with pytest.raises(AssertionError, match="stopped"):
        worker.ping()


def test_lock():
    with mock() as worker:
        with pytest.raises(RuntimeError, match="unlocked lock"):
            worker.unlock()
        worker.lock()
        assert worker.sample().count == 200, "no method takes it"
        with pytest.raises(TimeoutError):
            worker.lock(timeout_s=0.0)
        worker.unlock()
        worker.lock(0.0)


def test_where_it_is():
    with bare() as worker, socket.socket() as own:
        assert worker.get_host() == platform.node()
        assert socket.inet_aton(worker.get_node_ip())
        own.bind(("", worker.find_free_port()))


def test_spaces_are_those_before_preprocessing():
    box, few = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(4)
    given = {"a": (box, few), "__env__": (few, few)}
    with bare(spaces=given, config={"policies": ["a", "b"]}) as worker:
        assert worker.get_spaces() == {"a": (box, few), "b": (few, few), "__env__": (few, few)}
        assert worker.get_policy("b").observation_space != few


def test_what_sampling_gives_and_refuses():
    with two() as worker:
        batch, count = worker.sample_with_count()
        assert count == batch.env_steps() == 10
    with bare() as worker:
        with pytest.raises(ValueError, match="create_local_env_runner"):
            worker.sample()
        with pytest.raises(TypeError, match="explored"):
            worker.sample(explored=True)


def test_a_worker_that_was_stopped_has_closed_all_and_is_closed():
    factory = CountingEnvs(faults={0: [Fault("raise_at_close")]})
    worker = mock(env_creator=lambda _: factory(), config={"num_envs_per_env_runner": 2})
    batch = worker.sample()
    with pytest.warns(UserWarning, match="raised when it was closed"):
        worker.stop()
    worker.stop()
    assert [env.closed for env in factory.made] == [1, 1]
    for call in (
        worker.sample,
        lambda: worker.learn_on_batch(batch),
        lambda: worker.compute_gradients(batch),
        lambda: worker.apply_gradients([]),
        lambda: worker.sample_and_learn(10),
    ):
        with pytest.raises(Closed, match="stopped"):
            call()


def test_the_config_is_copied_and_may_be_a_dict_or_frozen():
    given = AlgorithmConfig().env_runners(rollout_fragment_length=7)
    given.freeze()
    with mock(config=given) as worker:
        worker.config.env_runners(rollout_fragment_length=9)
        assert (worker.sample().count, given.rollout_fragment_length) == (9, 7)
    with mock(config={"rollout_fragment_length": 3}) as worker:
        assert worker.sample().count == 3


class Dataset:
    """As Ray's."""

    def iter_batches(self, *, batch_size, batch_format):
        assert (batch_size, batch_format) == (4, "numpy")
        yield {"obs": np.arange(3)}
        yield {"obs": np.arange(3, 7)}


def test_dataset_shards():
    config = {"input_": "dataset", "rollout_fragment_length": 2, "num_envs_per_env_runner": 2}
    for shard in ([{"obs": np.arange(3)}, SampleBatch(obs=np.arange(3, 7))], Dataset()):
        with bare(config=config, worker_index=1, dataset_shards=[None, shard]) as worker:
            batches = [worker.sample() for _ in range(3)]
        assert [batch["obs"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 0], [1, 2, 3, 4]]
        assert set(batches[0]) == {"obs"}, "nothing is added"
    with bare(config=config, dataset_shards=[[]]) as worker, pytest.raises(ValueError, match="has no rows"):
        worker.sample()


def test_creation_args_build_the_same_worker():
    with learner() as worker:
        arguments, batch = worker.creation_args(), worker.sample()
        arguments["config"].training(gamma=0.1)
        again = worker.creation_args()
        assert (len(again), again["config"].gamma, worker.config.gamma) == (11, 0.99, 0.99)
        assert (again["num_workers"], again["worker_index"], again["log_dir"]) == (0, 0, None)
    with RolloutWorker(**again) as other:
        for name, column in other.sample().items():
            np.testing.assert_array_equal(column, batch[name])
