"""A worker: how it is built and seeded, what can be read of it, its methods, and what it refuses."""

import gc
import logging
import os
import platform
import random
import socket
import weakref
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
import torch
from rw_toys import DEFAULT, LONG, SMALL, alike, bare, cartpole, counting_worker, learner, mock, spaces_of, two

from mock_envs import MockEnv
from swath.errors import Closed
from swath.rollout_workers import (
    AlgorithmConfig,
    DefaultCallbacks,
    EnvContext,
    PPOTorchPolicy,
    RolloutWorker,
    SampleBatch,
    get_global_worker,
)
from swath.rollout_workers.policy import RandomPolicy
from swath.rollout_workers.worker.setup import Seeds
from swath.seeds import derive
from swath.testing.counting import Counting, CountingEnvs, Script
from swath.testing.faults import EnvBroke, Fault


def test_each_sub_env_is_made_with_its_own_context_validated_and_shown_to_callbacks():
    calls = []

    class Shown(DefaultCallbacks):
        def on_sub_environment_created(self, *, env_context, env_index, **kwargs):
            calls.append(("shown", env_context.vector_index, env_index))

        def on_create_policy(self, *, policy_id, policy):
            calls.append(("policy", policy_id, type(policy)))

    def create(context):
        calls.append(("made", context.vector_index, [*context["mine"]]))
        context["mine"].append(context.vector_index)
        return MockEnv(5, context)

    config = AlgorithmConfig().environment(env_config={"mine": []}).env_runners(num_envs_per_env_runner=2)
    check = lambda env, context: calls.append(("checked", context.vector_index, context is env.config))
    arguments = {"env_creator": create, "validate_env": check, "config": config.callbacks(Shown)}
    with mock(**arguments, num_workers=2, worker_index=1, recreated_worker=True) as worker:
        sub_env = lambda i: [("made", i, []), ("checked", i, True), ("shown", i, i)]
        assert calls == [*sub_env(0), *sub_env(1), ("policy", "default_policy", RandomPolicy)]
        context = worker.env.config
        assert (context.worker_index, context.num_workers, context.recreated_worker) == (1, 2, True)
        facts = worker.foreach_env_with_context(lambda env, ctx: (env.config is ctx, ctx.vector_index))
        assert facts == [(True, 0), (True, 1)]
        assert worker.foreach_env(lambda env: env.episode_length) == [5, 5]
    assert config.env_config == {"mine": []}


@pytest.mark.parametrize("where", ["env 2", "validate", "policy", "callback"])
def test_a_failure_while_building_is_raised_and_leaves_no_env_open(where):
    def fail(*args, **kwargs):
        raise LookupError(where)

    factory = CountingEnvs(faults={2: [Fault("raise_at_build")]} if where == "env 2" else None)
    config = AlgorithmConfig().env_runners(num_envs_per_env_runner=3)
    arguments = {"env_creator": lambda _: factory(), "config": config}
    if where == "callback":
        config.callbacks(on_sub_environment_created=fail)
    elif where != "env 2":
        arguments[{"validate": "validate_env", "policy": "default_policy_class"}[where]] = fail
    with pytest.raises(EnvBroke if where == "env 2" else LookupError, match=where):
        mock(**arguments)
    assert factory.made
    assert all(env.closed == 1 for env in factory.made)


NOT_LOCAL = {"create_local_env_runner": False}
WITH_ENVS = [
    (0, 0, NOT_LOCAL, True),
    (0, 2, NOT_LOCAL, False),
    (0, 2, {**NOT_LOCAL, "create_env_on_local_worker": True}, True),
    (0, 2, {}, True),
    (1, 2, NOT_LOCAL, True),
]


@pytest.mark.parametrize(("index", "num_workers", "settings", "has_env"), WITH_ENVS)
def test_which_workers_have_envs(index, num_workers, settings, has_env):
    spaces = tuple(spaces_of().values())
    with mock(config=settings, worker_index=index, num_workers=num_workers, spaces={"__env__": spaces}) as worker:
        assert [worker.env is None, worker.async_env is None] == [not has_env] * 2
        assert worker.get_spaces() == {"default_policy": spaces, "__env__": spaces}
        assert len(worker.foreach_env(lambda env: 1)) == has_env


def test_variables_are_put_into_the_environment_as_strings(monkeypatch):
    monkeypatch.setenv("SWATH_TEST_DRIVER", "")
    monkeypatch.delenv("SWATH_TEST_WORKER", raising=False)
    for_driver, for_worker = "extra_python_environs_for_driver", "extra_python_environs_for_worker"
    with bare(config={for_driver: {"SWATH_TEST_DRIVER": 3}, for_worker: {"SWATH_TEST_WORKER": 4}}):
        assert (os.environ["SWATH_TEST_DRIVER"], os.environ.get("SWATH_TEST_WORKER")) == ("3", None)


def test_the_newest_worker_of_the_process_is_known_and_not_kept_alive():
    with bare():
        second = bare()
        assert get_global_worker() is second
        second.stop()
        assert get_global_worker() is None
        third = weakref.ref(bare())
        gc.collect()
        assert third() is get_global_worker() is None


def test_in_an_env_with_one_agent_the_mapping_must_give_the_policy_that_acts_and_episodes_know_it():
    calls, notes = [], []

    def mapping(agent_id, episode, worker):
        calls.append((agent_id, worker))
        return "own"

    note = lambda *, episode, **_: notes.append((episode.policy_for(), episode.agent_rewards))
    config = AlgorithmConfig().env_runners(rollout_fragment_length=5).multi_agent({"own"}, policy_mapping_fn=mapping)
    with mock(config=config.callbacks(on_episode_end=note)) as worker:
        assert worker.sample()["own"].count == 5
        assert (calls, notes) == ([("agent0", worker)], [("own", {("agent0", "own"): 5.0})])
        worker.set_policy_mapping_fn(lambda *_, **__: "other")
        with pytest.raises(KeyError, match="'other' for agent 'agent0'; in an env with one agent 'own' acts"):
            worker.sample()
        worker.set_policy_mapping_fn(mapping)
        assert worker.sample()["own"].count == 5


def test_a_gpu_that_is_not_there_is_named_by_its_setting(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for index, setting in enumerate(("num_gpus", "num_gpus_per_env_runner")):
        with pytest.raises(RuntimeError, match=f"{setting}=1.0, but torch sees no CUDA device"):
            bare(config={setting: 1}, worker_index=index)
    bare(config={"num_gpus": 1, "_fake_gpus": True}).stop()


COUNTERS = {"env_steps_sampled": 20, "agent_steps_sampled": 20, "env_steps_discarded": 0}
COUNTERS |= {"episodes": 0, "episodes_faulty": 0, "sub_env_restarts": 0}
ATTRIBUTES = {
    "env": lambda worker: worker.env is worker.foreach_env(lambda env: env)[0],
    "async_env": lambda worker: worker.async_env.vector_env.envs == worker.async_env.get_sub_environments(),
    "policy_map": lambda worker: [*map(type, worker.policy_map.values())] == [PPOTorchPolicy],
    "policy_dict": lambda worker: None not in vars(worker.policy_dict[DEFAULT]).values(),
    "filters, preprocessors": lambda worker: [*worker.filters] == [*worker.preprocessors] == [DEFAULT],
    "policy_mapping_fn": lambda worker: worker.policy_mapping_fn("agent0", None) == DEFAULT,
    "is_policy_to_train": lambda worker: worker.is_policy_to_train is None,
    "total_rollout_fragment_length": lambda worker: worker.total_rollout_fragment_length == 20,
    "numbers of weights": lambda worker: (worker.weights_seq_no, worker.policy_version) == (None, 1),
    "counters": lambda worker: {**worker.counters, "episodes": 0} == COUNTERS,
    "config": lambda worker: isinstance(worker.config, AlgorithmConfig),
    "env_context": lambda worker: type(worker.env_context) is EnvContext and worker.env_context.worker_index == 0,
    "env_creator": lambda worker: callable(worker.env_creator),
    "callbacks": lambda worker: isinstance(worker.callbacks, DefaultCallbacks),
    "spaces": lambda worker: worker.spaces == worker.get_spaces(),
    "who it is": lambda worker: (worker.worker_index, worker.num_workers, worker.recreated_worker) == (0, 0, False),
    "seed": lambda worker: worker.seed == 3,
    "default_policy_class": lambda worker: worker.default_policy_class is PPOTorchPolicy,
    "global_vars": lambda worker: worker.global_vars == {"timestep": 0, "num_grad_updates_per_policy": {}},
    "last_batch": lambda worker: worker.last_batch is None,
}


@pytest.fixture(scope="module")
def worker():
    with learner(num_envs_per_env_runner=2) as built:
        built.learn_on_batch(built.sample())
        yield built


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_has_its_documented_content(name, worker):
    assert ATTRIBUTES[name](worker)


LOGGER = logging.getLogger("swath")


def test_the_log_is_a_file_the_level_comes_back_and_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(LOGGER, "level", logging.ERROR)
    where, handlers = tmp_path / "new" / "dir", list(LOGGER.handlers)
    with mock(log_dir=str(where), config={"log_level": "INFO"}):
        LOGGER.info("first")
    LOGGER.error("second")
    assert LOGGER.level == logging.ERROR
    assert [path.name for path in where.iterdir()] == ["worker_0.log"]
    text = (where / "worker_0.log").read_text()
    assert ("first" in text, "second" in text) == (True, False)
    with mock():
        assert LOGGER.handlers == handlers


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
def test_an_invalid_argument_is_refused(make, wrong, error, words):
    with pytest.raises(error, match=words):
        make(**wrong)


def test_an_env_of_another_kind_is_closed_with_the_others():
    second = gym.vector.SyncVectorEnv([lambda: MockEnv(5)])
    envs = [MockEnv(5), second]
    with pytest.raises(TypeError, match=r"for vector_index=1, after .*; make envs of one kind"):
        mock(env_creator=lambda context: envs[context.vector_index], config={"num_envs_per_env_runner": 2})
    assert second.closed


def test_a_creator_may_make_no_env():
    spaces = dict.fromkeys([DEFAULT], (gym.spaces.Discrete(2), gym.spaces.Discrete(2)))
    with mock(env_creator=lambda _: None, spaces=spaces, tf_session_creator=None) as worker:
        assert (worker.env, worker.async_env, worker.foreach_env(print)) == (None, None, [])
        assert repr(worker) == "<RolloutWorker 0/0: 0 envs, 1 policies; 0 env steps, version 0>"
        with pytest.raises(ValueError, match="create_local_env_runner"):
            worker.sample()


def test_apply_place_and_health():
    with bare() as worker, socket.socket() as server:
        assert worker.get_host() == platform.node()
        assert socket.inet_aton(worker.get_node_ip())
        server.bind(("", worker.find_free_port()))
        assert worker.apply(lambda server, n, *, m: (server, n, m), 1, m=2) == (worker, 1, 2)
        with pytest.raises(ZeroDivisionError):
            worker.apply(lambda server: 1 / 0)
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


def test_spaces_are_shown_before_preprocessing_and_batches_come_with_their_count():
    box, few = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(4)
    spaces = {"a": (box, few), "__env__": (few, few)}
    with bare(spaces=spaces, config={"policies": ["a", "b"]}) as worker:
        assert worker.get_spaces() == {"a": (box, few), "b": (few, few), "__env__": (few, few)}
        assert worker.get_policy("b").observation_space != few
    with two() as worker:
        batch, count = worker.sample_with_count()
        assert count == batch.env_steps() == 10


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
    config = AlgorithmConfig().env_runners(rollout_fragment_length=7)
    config.freeze()
    with mock(config=config) as worker:
        worker.config.env_runners(rollout_fragment_length=9)
        assert (worker.sample().count, config.rollout_fragment_length) == (9, 7)
    with mock(config={"rollout_fragment_length": 3, "fake_sampler": True}) as worker:
        assert worker.sample().count == 3
        assert worker.sample() is not worker.last_batch is not None, "a fake sampler hands out copies"


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


def test_the_first_worker_seeds_its_envs_with_the_root_and_those_after_it_once():
    with counting_worker(Counting(script=Script((2,))), seed=1) as worker:
        envs = worker.env_creator.made
        assert worker.seed == 1
        assert all(env.seeds == [] for env in envs), "envs are first reset by the first sample"
        worker.sample()
        worker.sample()
        worker.sample(force_reset=True)
    assert [env.seeds[0] for env in envs] == [1, 2, 3]
    assert {seed for env in envs for seed in env.seeds[1:]} == {None}


def test_no_two_seeds_of_a_root_are_equal():
    workers = product(range(64), range(8), (False, True))
    found = [seed for worker in workers for seed in Seeds(12345, *worker).env_seeds(64)]
    found += [Seeds(12345).rebuilt_env_seed(env, 64, time) for env in range(64) for time in range(1, 200)]
    lives = [Seeds(5, worker, life).worker_seed for worker in (0, 1) for life in range(1001)]
    assert (len(set(found)), len(set(lives))) == (len(found), len(lives))
    assert all(0 <= seed < 2**31 for seed in found)
    assert found[:64] == [*range(12345, 12345 + 64)]
    root = 15_674
    assert root <= derive(root, "env", 4) < root + 2**16, "a seed that would be one of the pinned ones"
    found = Seeds(root, worker=1).env_seeds(4)
    assert not [seed for seed in found if root <= seed < root + 2**16]
    assert len(set(found)) == 4


def test_another_life_has_other_seeds_and_other_ids():
    with counting_worker(LONG, seed=1) as worker:
        first = worker.sample()
    with RolloutWorker(**{**worker.creation_args(), "recreated_worker": 1}) as other:
        second = other.sample()
    assert len({env.seeds[0] for env in worker.env_creator.made}) == 6
    for name in ("eps_id", "unroll_id"):
        assert not set(first[name].tolist()) & set(second[name].tolist())


@pytest.mark.parametrize("policy", [RandomPolicy, PPOTorchPolicy])
def test_equal_seeds_give_equal_batches_and_the_process_draws_as_if_there_were_no_worker(policy):
    def drawn():
        return random.random(), np.random.random(), torch.rand(1).item()

    def batches():
        config = {**SMALL, "seed": 3, "num_envs_per_env_runner": 2}
        with mock(env_creator=cartpole, default_policy_class=policy, config=config) as worker:
            sampled = [worker.sample()]
            if policy is PPOTorchPolicy:
                worker.learn_on_batch(sampled[0])
            return [*sampled, worker.sample()]

    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    wanted = drawn()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    first = batches()
    assert drawn() == wanted
    for mine, theirs in zip(first, batches(), strict=True):
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def test_workers_begin_with_equal_weights_and_explore_differently():
    arguments = {"env_creator": cartpole, "default_policy_class": PPOTorchPolicy, "config": {**SMALL, "seed": 3}}
    with mock(worker_index=1, **arguments) as first, mock(worker_index=2, **arguments) as second:
        assert first.seed != second.seed
        assert alike(first.get_weights(), second.get_weights())
        assert first.sample()["actions"].tolist() != second.sample()["actions"].tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_seeded_worker_has_its_own_random_stream_on_a_gpu():
    torch.rand(1, device="cuda")
    before, drawn = torch.cuda.get_rng_state(), []
    config = AlgorithmConfig().debugging(seed=3).resources(num_gpus=1)
    for _ in range(2):
        with mock(env_creator=cartpole, default_policy_class=PPOTorchPolicy, config=config) as worker:
            drawn.append(worker.sample()["actions"].tolist())
        assert torch.equal(torch.cuda.get_rng_state(), before)
    assert drawn[0] == drawn[1]
