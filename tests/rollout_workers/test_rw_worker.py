"""A worker: how it is built, what it tells of itself, its policies, weights and updates."""

import gc
import os
import pickle
import threading
import weakref
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sampling_toys import Foreseen, counting_worker, made_of

from swath.errors import Closed, NoEffectWarning
from swath.rollout_workers import (
    AlgorithmConfig,
    DefaultCallbacks,
    PolicySpec,
    RolloutWorker,
    SampleBatch,
    get_global_worker,
)
from swath.rollout_workers.policies.pg import PGTorchPolicy
from swath.rollout_workers.policies.ppo import PPOTorchPolicy
from swath.rollout_workers.policies.random import RandomPolicy
from swath.testing.counting_env import CountingEnvs
from swath.testing.envs import MockEnv
from swath.testing.faults import EnvBroke, Fault

TWO = {"policies": ["a", "b"]}
SMALL = {"model": {"fcnet_hiddens": [8]}, "rollout_fragment_length": 10}


def cartpole() -> Any:
    """The env."""
    return gym.make("CartPole-v1")


def learner(**settings: Any) -> RolloutWorker:
    """A worker that can learn."""
    return made_of(cartpole, PPOTorchPolicy, **{**SMALL, "seed": 3, **settings})


def bare(**arguments: Any) -> RolloutWorker:
    """A worker without envs."""
    space = gym.spaces.Discrete(2)
    return RolloutWorker(default_policy_class=RandomPolicy, spaces={"default_policy": (space, space)}, **arguments)


def test_sub_envs_are_made_each_with_a_context_of_its_own_then_validated_and_shown():
    seen: list[Any] = []

    class Shown(DefaultCallbacks):
        def on_sub_environment_created(self, *, sub_environment: Any, env_context: Any, **kwargs: Any) -> None:
            seen.append(("shown", env_context.vector_index, kwargs["env_index"]))

        def on_create_policy(self, *, policy_id: str, policy: Any) -> None:
            seen.append(("policy", policy_id, type(policy)))

    def create(context: Any) -> Any:
        seen.append(("made", context.vector_index, dict(context)))
        context["mine"].append(context.vector_index)
        return MockEnv(5, context)

    config = AlgorithmConfig().environment(env_config={"mine": []}).env_runners(num_envs_per_env_runner=2)
    config = config.callbacks(Shown)
    worker = RolloutWorker(
        env_creator=create,
        validate_env=lambda env, context: seen.append(("checked", context.vector_index, context is env.config)),
        config=config,
        default_policy_class=RandomPolicy,
        num_workers=2,
        worker_index=1,
        recreated_worker=True,
    )
    with worker:
        assert [kind for kind, *_ in seen] == ["made", "checked", "shown"] * 2 + ["policy"]
        assert [entry[1] for entry in seen[:6]] == [0] * 3 + [1] * 3
        context = worker.env.config
        assert (context.worker_index, context.num_workers, context.recreated_worker) == (1, 2, True)
        assert worker.foreach_env_with_context(lambda env, ctx: (env.config is ctx, ctx.vector_index)) == [
            (True, 0),
            (True, 1),
        ]
        assert worker.foreach_env(lambda env: env.episode_length) == [5, 5]
    assert config.env_config == {"mine": []}


@pytest.mark.parametrize("kind", ["raise_at_build"])
def test_if_construction_fails_all_that_was_made_is_closed_and_the_error_is_raised(kind: Any):
    factory = CountingEnvs(faults={2: [Fault(kind)]})
    with pytest.raises(EnvBroke, match="env 2"):
        made_of(factory, Foreseen, num_envs_per_env_runner=3)
    assert [env.closed for env in factory.made] == [1, 1]


@pytest.mark.parametrize("where", ["validate", "policy", "callback"])
def test_whatever_fails_leaves_no_env_open(where: str):
    factory = CountingEnvs()

    def fail(*_: Any, **__: Any) -> Any:
        raise LookupError(where)

    class Failing(RandomPolicy):
        def __init__(self, *_: Any) -> None:
            fail()

    config = AlgorithmConfig().env_runners(num_envs_per_env_runner=2)
    if where == "callback":
        config = config.callbacks(on_sub_environment_created=fail)
    with pytest.raises(LookupError, match=where):
        RolloutWorker(
            env_creator=lambda _: factory(),
            validate_env=fail if where == "validate" else None,
            config=config,
            default_policy_class=Failing if where == "policy" else RandomPolicy,
        )
    assert factory.made
    assert all(env.closed == 1 for env in factory.made)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"worker_index": -1}, ValueError, "worker_index"),
        ({"num_workers": -1}, ValueError, "num_workers=-1 must be at least 0"),
        ({"tf_session_creator": print}, ValueError, "torch only"),
        ({"config": 3}, TypeError, "config=3"),
        ({"unknown": 1}, TypeError, "unknown"),
        ({"env_creator": 3}, TypeError, "env_creator=3 is of type int; give a function of an EnvContext"),
        ({"validate_env": "x"}, TypeError, "validate_env='x' is of type str; give a function of an env"),
        ({"default_policy_class": "x"}, TypeError, "default_policy_class='x' is of type str; give a Policy class"),
        ({"spaces": 3}, TypeError, "spaces=3 must be a dict"),
        ({"dataset_shards": []}, ValueError, "dataset_shards"),
        ({"env_creator": lambda _: object(), "default_policy_class": RandomPolicy}, TypeError, "env_creator made"),
        ({"env_creator": lambda _: MockEnv(3)}, ValueError, "'default_policy' has no class"),
        (
            {
                "env_creator": lambda _: MockEnv(3),
                "default_policy_class": RandomPolicy,
                "config": {"policies": ["a", "b"]},
            },
            ValueError,
            r"policies \['a', 'b'\]",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: Any, error: Any, said: str):
    with pytest.raises(error, match=said):
        RolloutWorker(**arguments)


@pytest.mark.parametrize(
    ("index", "num_workers", "settings", "made"),
    [
        (0, 0, {"create_local_env_runner": False}, True),
        (0, 2, {"create_local_env_runner": False}, False),
        (0, 2, {"create_local_env_runner": False, "create_env_on_local_worker": True}, True),
        (0, 2, {}, True),
        (1, 2, {"create_local_env_runner": False}, True),
    ],
)
def test_which_workers_have_envs(index: int, num_workers: int, settings: Any, made: bool):
    env = MockEnv(3)
    worker = RolloutWorker(
        env_creator=lambda _: MockEnv(3),
        default_policy_class=RandomPolicy,
        config=settings,
        worker_index=index,
        num_workers=num_workers,
        spaces={"__env__": (env.observation_space, env.action_space)},
    )
    with worker:
        assert (worker.env is not None) == made
        assert (worker.async_env is not None) == made
        assert worker.get_spaces()["default_policy"] == (env.observation_space, env.action_space)
        assert worker.get_spaces()["__env__"] == (env.observation_space, env.action_space)


def test_variables_are_put_into_the_environment_as_strings(monkeypatch: Any):
    monkeypatch.setenv("SWATH_TEST_DRIVER", "")
    monkeypatch.delenv("SWATH_TEST_WORKER", raising=False)
    config = {
        "extra_python_environs_for_driver": {"SWATH_TEST_DRIVER": 3},
        "extra_python_environs_for_worker": {"SWATH_TEST_WORKER": 4},
    }
    with bare(config=config):
        assert os.environ["SWATH_TEST_DRIVER"] == "3"
        assert "SWATH_TEST_WORKER" not in os.environ


def test_it_tells_who_it_is():
    with learner(num_envs_per_env_runner=2) as worker:
        worker.sample()
        assert repr(worker) == "<RolloutWorker 0/0: 2 envs, 1 policies; 20 env steps, version 0>"
        assert worker.total_rollout_fragment_length == 20
        assert worker.counters["env_steps_sampled"] == worker.counters["agent_steps_sampled"] == 20
        assert worker.ping() == "pong"
        assert worker.get_host()
        assert worker.get_node_ip().count(".") == 3
        assert 0 < worker.find_free_port() < 2**16
        worker.assert_healthy()
        assert worker.apply(lambda me, n, *, m: (me is worker, n, m), 1, m=2) == (True, 1, 2)
        assert worker.apply("ping") == "pong"
    with pytest.raises(AssertionError, match="stopped"):
        worker.assert_healthy()
    with pytest.raises(AssertionError, match="stopped"):
        worker.ping()
    with pytest.raises(Closed):
        worker.learn_on_batch(SampleBatch())


def test_the_newest_worker_of_the_process_is_known_and_not_kept_alive():
    first = bare()
    second = bare()
    assert get_global_worker() is second
    second.stop()
    assert get_global_worker() is None
    third = weakref.ref(bare())
    gc.collect()
    assert third() is None
    assert get_global_worker() is None
    first.stop()


def test_the_lock_is_one_that_callers_agree_on():
    with bare() as worker:
        worker.lock()
        with pytest.raises(TimeoutError, match="within 0 s"):
            worker.lock(timeout_s=0)
        with pytest.raises(ValueError, match="timeout_s=-1 must be a finite number of seconds"):
            worker.lock(timeout_s=-1)  # would wait for ever
        thread = threading.Thread(target=worker.unlock)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError):
            worker.unlock()


def test_the_same_arguments_build_the_same_worker():
    with learner(num_envs_per_env_runner=2) as worker:
        arguments = worker.creation_args()
        batch = worker.sample()
    assert len(arguments) == 11
    assert arguments["num_workers"] == 0
    with RolloutWorker(**arguments) as again:
        for name, column in again.sample().items():
            np.testing.assert_array_equal(column, batch[name])


def test_weights_are_copies_and_are_copied_in():
    with learner() as worker, learner(seed=4) as other:
        weights = worker.get_weights()
        for array in weights["default_policy"].values():
            np.add(array, 1, out=array)
        before = worker.get_weights("default_policy")
        one = next(iter(before["default_policy"]))
        assert not np.array_equal(before["default_policy"][one], weights["default_policy"][one])
        other.set_weights(before, {"timestep": 7}, weights_seq_no=5)
        assert (other.weights_seq_no, other.policy_version) == (5, 5)
        other.set_weights(weights, {"timestep": 8}, weights_seq_no=5)
        assert other.get_global_vars()["timestep"] == other.get_policy().global_timestep == 8
        for name, array in other.get_weights()["default_policy"].items():
            np.testing.assert_array_equal(array, before["default_policy"][name])
        other.set_weights(weights)
        assert (other.weights_seq_no, other.policy_version) == (None, 6)
        with pytest.raises(KeyError, match="nobody"):
            worker.get_weights(["nobody"])
        with pytest.warns(NoEffectWarning, match="inference_only"):
            worker.get_weights(inference_only=True)


def test_weights_that_do_not_fit_are_refused_and_strangers_are_warned_of_once():
    with learner() as worker:
        before = worker.get_weights()
        own = dict(before["default_policy"])
        own.pop(next(iter(own)))
        with pytest.raises(ValueError, match="missing"):
            worker.set_weights({"default_policy": own}, weights_seq_no=3)
        assert (worker.weights_seq_no, worker.policy_version) == (None, 0)
        with pytest.warns(UserWarning, match="'stranger'"):
            worker.set_weights({"stranger": {}})
        worker.set_weights({"stranger": {}})


def test_weights_of_several_policies_are_set_all_or_none():
    env = MockEnv(3)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    with bare() as worker:
        worker.add_policy("first", PGTorchPolicy, config=SMALL, **spaces)
        worker.add_policy("second", PGTorchPolicy, config=SMALL, **spaces)
        before, given = worker.get_weights(), worker.get_weights()
        for array in given["first"].values():
            np.add(array, 1, out=array)
        given["second"] = {}
        with pytest.raises(ValueError, match="missing"):
            worker.set_weights(given)
        for name, array in worker.get_weights("first")["first"].items():
            np.testing.assert_array_equal(array, before["first"][name])


def test_gradients_applied_elsewhere_are_an_update():
    with learner() as one, learner() as other:
        batch = one.sample()
        gradients, info = one.compute_gradients(batch)
        assert info["batch_count"] == 10
        alone, _ = one.compute_gradients(batch, single_agent=True)
        assert len(alone) == len(gradients["default_policy"])
        assert one.policy_version == 0
        other.apply_gradients(gradients)
        told = one.learn_on_batch(batch)
        assert batch.num_grad_updates == 0
        assert one.sample().num_grad_updates == 1
        assert told["default_policy"]["learner_stats"]
        assert one.policy_version == other.policy_version == 1
        for name, array in one.get_weights()["default_policy"].items():
            np.testing.assert_allclose(array, other.get_weights()["default_policy"][name], rtol=1e-6)
        with pytest.raises(KeyError, match="nobody"):
            other.apply_gradients({"nobody": []})
        with pytest.raises(ValueError, match="gradients"):
            other.apply_gradients([])
        with pytest.raises(ValueError, match="single_agent"):
            one.compute_gradients(batch.as_multi_agent("other"), single_agent=True)


def test_policies_that_are_not_to_be_trained_stay_bit_for_bit():
    with learner(policies_to_train=[]) as worker:
        before, batch = worker.get_weights(), worker.sample()
        assert worker.learn_on_batch(batch) == {}
        assert worker.compute_gradients(batch)[0] == {}
        assert worker.policy_version == 0
        for name, array in worker.get_weights()["default_policy"].items():
            np.testing.assert_array_equal(array, before["default_policy"][name])
        worker.set_is_policy_to_train(lambda policy_id, batch=None: True)
        assert worker.get_policies_to_train() == {"default_policy"}
        for wrong in ("default_policy", None, 3):
            with pytest.raises(TypeError):
                worker.set_is_policy_to_train(wrong)
        assert worker.foreach_policy_to_train(lambda policy, policy_id: policy_id) == ["default_policy"]


def test_sampling_and_learning_in_one_goes_through_the_rows_in_passes():
    with learner() as worker:
        info, count = worker.sample_and_learn(10, 3, 4, ["advantages"])
        assert count == 10
        assert worker.get_policy().num_grad_updates == 9
        assert info["default_policy"]["learner_stats"]["kl"] >= 0
        with pytest.raises(AssertionError, match="expected_batch_size=11"):
            worker.sample_and_learn(11, None, None, [])


def test_a_policy_is_added_whole_or_not_at_all():
    env = MockEnv(3)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    with bare() as worker:
        made = worker.add_policy("second", PGTorchPolicy, config={"gamma": 0.5, **SMALL}, **spaces)
        assert made is worker.get_policy("second")
        assert made.config["gamma"] == 0.5
        assert made.config["__policy_id"] == "second"
        maps = (worker.policy_map, worker.policy_dict, worker.filters, worker.preprocessors)
        for wrong, error in [
            ({"policy_id": "second", "policy_cls": RandomPolicy}, KeyError),
            ({"policy_id": "third"}, ValueError),
            ({"policy_id": "third", "policy_cls": RandomPolicy, "policy": made}, ValueError),
            ({"policy_id": "third", "policy_cls": RandomPolicy, "module_spec": 1}, ValueError),
            ({"policy_id": "third", "policy_cls": RandomPolicy, "policy_mapping_fn": 3}, ValueError),
            ({"policy_id": "third", "policy_cls": RandomPolicy, "policies_to_train": "third"}, TypeError),
            ({"policy_id": "third", "policy_cls": RandomPolicy, "policy_state": {}}, KeyError),
        ]:
            with pytest.raises(error):
                worker.add_policy(**wrong, **spaces)
            assert all(set(held) == {"default_policy", "second"} for held in maps)
        ready = RandomPolicy(env.observation_space, env.action_space, {})
        assert worker.add_policy("third", policy=ready, policies_to_train=["third"]) is ready
        assert worker.get_policies_to_train() == {"third"}
        worker.remove_policy(policy_id="second", policies_to_train=["default_policy"])
        assert all(set(held) == {"default_policy", "third"} for held in maps)
        assert worker.foreach_policy(lambda policy, policy_id, n: (policy_id, n), n=1) == [
            ("default_policy", 1),
            ("third", 1),
        ]
        assert worker.for_policy(lambda policy: policy, "third") is ready
        with pytest.raises(KeyError, match="nobody"):
            worker.for_policy(print, "nobody")
        with pytest.raises(ValueError, match="nobody"):
            worker.remove_policy(policy_id="nobody")
        assert worker.get_policy("nobody") is None


def test_the_mapping_function_is_set_unless_it_cannot_be_called():
    with bare() as worker:
        before = worker.policy_mapping_fn
        with pytest.raises(ValueError, match="policy_mapping_fn=3"):
            worker.set_policy_mapping_fn(3)
        worker.set_policy_mapping_fn(None)
        assert worker.policy_mapping_fn is before
        worker.set_policy_mapping_fn(max)
        assert worker.policy_mapping_fn is max


def test_another_policy_takes_over_with_new_episodes_and_no_id_twice():
    worker, _ = counting_worker()
    with worker:
        first = worker.sample()
        spec = worker.policy_dict["default_policy"]
        worker.remove_policy()
        worker.add_policy(
            "default_policy", RandomPolicy, observation_space=spec.observation_space, action_space=spec.action_space
        )
        second = worker.sample()
    assert set(second["obs"][:, 1].tolist()) == {1}
    for name in ("eps_id", "unroll_id"):
        assert not set(first[name].tolist()) & set(second[name].tolist())
    assert "twice" not in second


def test_state_is_read_without_a_trace_and_brings_another_worker_to_the_same_point():
    with (
        learner(observation_filter="MeanStdFilter") as worker,
        learner(seed=9, observation_filter="MeanStdFilter") as other,
    ):
        batch = worker.sample()
        worker.learn_on_batch(batch)
        worker.set_global_vars({"timestep": 5})
        state = pickle.loads(
            pickle.dumps({name: value for name, value in worker.get_state().items() if value is not None})
        )
        assert other.policy_version == 0
        other.set_state(state)
        assert other.policy_version == 1
        assert other.get_global_vars()["timestep"] == 5
        assert other.filters["default_policy"].rs.n == worker.filters["default_policy"].rs.n == 11
        for name, array in other.get_weights()["default_policy"].items():
            np.testing.assert_array_equal(array, worker.get_weights()["default_policy"][name])
        assert set(worker.get_state()) == {
            "policy_ids",
            "policy_states",
            "policy_mapping_fn",
            "is_policy_to_train",
            "filters",
            "global_vars",
            "weights_seq_no",
            "policy_version",
        }
        other.set_state({})
        assert other.policy_version == 1


def test_filters_are_given_as_copies_and_synced():
    with learner(observation_filter="MeanStdFilter") as worker:
        worker.sample()
        copies = worker.get_filters(flush_after=True)
        assert copies["default_policy"].buffer.n == 11
        assert worker.filters["default_policy"].buffer.n == 0
        worker.sample()
        own = worker.filters["default_policy"].buffer.n
        worker.sync_filters(copies)
        assert worker.filters["default_policy"].rs.n == 11 + own
        with pytest.raises(AssertionError, match="default_policy"):
            worker.sync_filters({})


def test_rows_of_a_dataset_take_the_place_of_envs():
    parts = [{"obs": np.arange(3), "rewards": np.arange(3.0)}, SampleBatch(obs=np.arange(3, 7), rewards=np.ones(4))]
    config = {"input_": "dataset", "rollout_fragment_length": 4}
    with bare(config=config, dataset_shards=[parts]) as worker:
        assert [worker.sample()["obs"].tolist() for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 0], [1, 2, 3, 4]]
    with pytest.raises(ValueError, match="dataset_shards"):
        bare(config=config, dataset_shards=[])


def test_items_are_batches_without_end():
    worker, _ = counting_worker()
    with worker:
        worker.par_iter_init([])
        assert [len(worker.par_iter_next()) for _ in range(3)] == [12] * 3
    batch, steps = None, None
    worker, _ = counting_worker()
    with worker:
        batch, steps = worker.sample_with_count()
    assert len(batch) == steps == 12
    assert RolloutWorker.sample_with_count.__ray_num_returns__ == 2


def test_batches_are_shown_when_they_are_complete():
    seen: list[Any] = []

    class Shown(DefaultCallbacks):
        def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
            seen.append((worker, samples["obs"].dtype))
            samples["mine"] = np.zeros(samples.count)

    with learner(callbacks_class=Shown) as worker:
        batch = worker.sample()
    assert seen == [(worker, np.float32)]
    assert "mine" in batch


def test_a_spec_may_bring_its_own_class_and_settings():
    config = AlgorithmConfig().multi_agent(
        policies={"default_policy": PolicySpec(PGTorchPolicy, config={"gamma": 0.25})}
    )
    config = config.training(model={"fcnet_hiddens": [4]})
    with RolloutWorker(env_creator=lambda _: cartpole(), config=config) as worker:
        policy = worker.get_policy()
        assert (type(policy), policy.config["gamma"]) == (PGTorchPolicy, 0.25)
        assert {"worker_index", "num_workers"} <= policy.config.keys()
        assert worker.is_policy_to_train is None
