"""Of the check-list: sampling, envs, metrics, iteration, and where a worker is."""

import platform
import socket
import sys
import threading

import numpy as np
import pytest
from checklist_toys import DEFAULT, SMALL, bare, cartpole, learner, mock, two
from sampling_toys import counting_worker

import ray_cluster
from swath.errors import Closed
from swath.rollout_workers import MultiAgentBatch, PPOTorchPolicy, RolloutWorker, SampleBatch
from swath.testing.counting_env import CountingEnvs
from swath.testing.envs import BasicMultiAgent, MockEnv
from swath.testing.faults import Fault


def sample():
    worker, _ = counting_worker(explore=False)
    with worker:
        first, second = worker.sample(), worker.sample(explore=True, force_reset=True)
        assert [type(first), first.count] == [SampleBatch, 12]
        assert worker.get_policy().explored == [False] * 4 + [True] * 4
        assert second["t"].tolist() == [0, 1, 2, 3] * 3
    with two() as worker:
        assert isinstance(worker.sample(), MultiAgentBatch)


def sample_refuses():
    with bare() as worker:
        with pytest.raises(ValueError, match="create_local_env_runner"):
            worker.sample()
        with pytest.raises(TypeError, match="explored"):
            worker.sample(explored=True)
    with pytest.raises(Closed):
        worker.sample()


def sample_with_count():
    assert RolloutWorker.sample_with_count.__ray_num_returns__ == 2
    with two() as worker:
        batch, count = worker.sample_with_count()
        assert count == batch.env_steps() == 10


def get_metrics():
    with mock(config={"rollout_fragment_length": 11}) as worker:
        worker.sample()
        assert [metrics.episode_length for metrics in worker.get_metrics()] == [5, 5]
        assert worker.get_metrics() == []


def get_spaces():
    env = MockEnv(5)
    with mock() as worker:
        both = (env.observation_space, env.action_space)
        assert worker.get_spaces() == {DEFAULT: both, "__env__": both}
        assert worker.get_policy().observation_space != env.observation_space, "which is preprocessed"


def foreach_env():
    with mock(config={"num_envs_per_env_runner": 3}) as worker:
        assert worker.foreach_env(lambda env: env.config.vector_index) == [0, 1, 2]
    with bare() as without:
        assert without.foreach_env(lambda env: 1) == []


def foreach_env_with_context():
    with mock(config={"num_envs_per_env_runner": 3}) as worker:
        found = worker.foreach_env_with_context(lambda env, context: (env.config is context, context.vector_index))
        assert found == [(True, n) for n in range(3)]
    with bare() as without:
        assert without.foreach_env_with_context(lambda env, context: 1) == []


def apply():
    with bare() as worker:
        assert worker.apply(lambda own, n, *, m: (own, n, m), 1, m=2) == (worker, 1, 2)
        assert worker.apply("ping") == "pong"


def apply_refuses():
    with bare() as worker:
        with pytest.raises(ZeroDivisionError):
            worker.apply(lambda own: 1 / 0)
        assert worker.ping() == "pong"


def ping():
    with bare() as worker:
        assert worker.ping() == "pong"


def assert_healthy():
    with bare() as worker:
        assert worker.assert_healthy() is None


def assert_healthy_refuses():
    with bare() as worker:
        worker.remove_policy()
        with pytest.raises(AssertionError, match="no policy"):
            worker.assert_healthy()
    with pytest.raises(AssertionError, match="stopped"):
        worker.assert_healthy()


def lock():
    with mock() as worker:
        worker.lock()
        assert worker.sample().count == 200, "no method takes it"


def lock_refuses():
    with bare() as worker:
        worker.lock()
        with pytest.raises(TimeoutError):
            worker.lock(timeout_s=0.0)


def unlock():
    with bare() as worker:
        for _ in range(2):
            worker.lock()
            thread = threading.Thread(target=worker.unlock)
            thread.start()
            thread.join()


def unlock_refuses():
    with bare() as worker, pytest.raises(RuntimeError, match="worker 0 is free already"):
        worker.unlock()


def get_host():
    with bare() as worker:
        assert worker.get_host() == platform.node()


def get_node_ip():
    with bare() as worker:
        assert socket.inet_aton(worker.get_node_ip())


def find_free_port():
    with bare() as worker, socket.socket() as own:
        own.bind(("", worker.find_free_port()))


def creation_args():
    config = {**SMALL, "seed": 3}
    with learner(seed=3) as worker:
        arguments, batch = worker.creation_args(), worker.sample()
        assert len(arguments) == 11
        assert (arguments["num_workers"], arguments["worker_index"], arguments["log_dir"]) == (0, 0, None)
        arguments["config"].training(gamma=0.1)
        again = worker.creation_args()
        assert (again["config"].gamma, worker.config.gamma) == (0.99, 0.99)
        assert all(again["config"][name] == value for name, value in config.items() if name != "model")
    with RolloutWorker(**again) as other:
        for name, column in other.sample().items():
            np.testing.assert_array_equal(column, batch[name])


def stop():
    factory = CountingEnvs(faults={0: [Fault("raise_at_close")]})
    worker = mock(env_creator=lambda _: factory(), config={"num_envs_per_env_runner": 2})
    with pytest.warns(UserWarning, match="raised when it was closed"):
        worker.stop()
    worker.stop()
    assert [env.closed for env in factory.made] == [1, 1]


def stop_refuses():
    worker = learner()
    batch = worker.sample()
    worker.stop()
    for call in (
        worker.sample,
        worker.sample_with_count,
        lambda: worker.learn_on_batch(batch),
        lambda: worker.compute_gradients(batch),
        lambda: worker.apply_gradients([]),
        lambda: worker.sample_and_learn(10),
    ):
        with pytest.raises(Closed, match="stopped"):
            call()


def items():
    """A worker whose items begin with the steps 0, 4, 8, …"""
    worker, _ = counting_worker()
    worker.par_iter_init([])
    return worker


def first_step(batch):
    return int(batch["t"][0])


def par_iter_init():
    worker = items()
    with worker:
        worker.par_iter_init([lambda it: it.for_each(first_step), lambda it: it.filter(lambda step: step % 8 == 0)])
        assert [worker.par_iter_next() for _ in range(3)] == [0, 8, 16]
        worker.par_iter_init([lambda it: it.for_each(first_step).batch(2)])
        assert worker.par_iter_next() == [20, 24]


def par_iter_init_refuses():
    with items() as worker, pytest.raises(AssertionError, match="gave None"):
        worker.par_iter_init([lambda it: None])


def par_iter_next():
    with items() as worker:
        assert [first_step(worker.par_iter_next()) for _ in range(3)] == [0, 4, 8]


def par_iter_next_refuses():
    worker, _ = counting_worker(faults={0: [Fault("raise", step=2)]})
    with worker:
        with pytest.raises(AssertionError, match="par_iter_init"):
            worker.par_iter_next()
        worker.par_iter_init([])
        with pytest.raises(RuntimeError, match="env 0 raised"):
            worker.par_iter_next()
        assert worker.par_iter_next().count == 12, "the next call goes on"


def par_iter_next_batch():
    with items() as worker:
        assert [first_step(batch) for batch in worker.par_iter_next_batch(0)] == [0]
        assert len(worker.par_iter_next_batch(5)) >= 1


def par_iter_next_batch_refuses():
    with items() as worker, pytest.raises(ValueError, match="batch_ms=-1"):
        worker.par_iter_next_batch(-1)


def par_iter_slice():
    with items() as worker:
        dealt = [first_step(worker.par_iter_slice(2, start)) for start in (1, 1, 0, 0, 0)]
        assert dealt == [4, 12, 0, 8, 16]


def par_iter_slice_refuses():
    with items() as worker:
        for start in (-1, 2):
            with pytest.raises(ValueError, match=f"start={start}"):
                worker.par_iter_slice(2, start)


def par_iter_slice_batch():
    with items() as worker:
        assert [first_step(batch) for batch in worker.par_iter_slice_batch(2, 1, 0)] == [4]
        assert first_step(worker.par_iter_slice_batch(2, 1, 5)[0]) == 12


def par_iter_slice_batch_refuses():
    with items() as worker:
        with pytest.raises(ValueError, match="batch_ms=-1"):
            worker.par_iter_slice_batch(2, 1, -1)
        with pytest.raises(ValueError, match="start=2"):
            worker.par_iter_slice_batch(2, 2, 0)


def multi_agent_envs():
    config = {"policies": ["a", "b"], "policy_mapping_fn": lambda agent, *_, **__: "ab"[agent % 2]}
    config |= {"rollout_fragment_length": 10}
    with mock(env_creator=lambda _: BasicMultiAgent(3), config=config) as worker:
        batch = worker.sample()
        assert (batch.env_steps(), batch["a"].count, batch["b"].count) == (10, 20, 10)


def multi_agent_envs_refuses():
    config = {"policy_mapping_fn": lambda *_, **__: "nobody", "rollout_fragment_length": 10}
    with (
        pytest.raises((KeyError, ValueError), match="nobody"),
        mock(env_creator=lambda _: BasicMultiAgent(3), config=config) as worker,
    ):
        worker.sample()


def prints_a_sample_batch():
    with mock(config={"rollout_fragment_length": 10}) as worker:
        assert str(worker.sample()).startswith("SampleBatch(10 rows: obs, new_obs, actions,")


def prints_a_multi_agent_batch():
    with two() as worker:
        assert str(worker.sample()).startswith("MultiAgentBatch(10 env steps; a: 10 rows")


def replicas_as_ray_actors():
    ray = ray_cluster.up()
    from ray.util.iter import from_actors

    module = sys.modules[cartpole.__module__]
    ray.cloudpickle.register_pickle_by_value(module)
    try:
        made = {"env_creator": cartpole, "default_policy_class": PPOTorchPolicy, "config": SMALL}
        actors = [ray.remote(num_cpus=0)(RolloutWorker).remote(worker_index=n, **made) for n in (1, 2)]
        batch, count = ray.get(actors[0].sample_with_count.remote())
        assert (batch.count, count) == (10, 10)
        shards = from_actors(actors)
        assert [one.count for one in shards.gather_async().take(4)] == [10] * 4
        assert shards.for_each(lambda one: one.count).batch(2).gather_sync().take(2) == [[10, 10]] * 2
    finally:
        ray.cloudpickle.unregister_pickle_by_value(module)
