"""A worker: how it is built, what it tells of itself, its policies, weights and updates."""

import gc
import os
import weakref
from typing import Any

import numpy as np
import pytest
from checklist_toys import SMALL, bare
from sampling_toys import counting_worker

from swath.rollout_workers import (
    AlgorithmConfig,
    DefaultCallbacks,
    RolloutWorker,
    get_global_worker,
)
from swath.rollout_workers.policies.ppo import PGTorchPolicy
from swath.rollout_workers.policy import RandomPolicy
from swath.testing.counting import CountingEnvs
from swath.testing.envs import BasicMultiAgent, MockEnv
from swath.testing.faults import EnvBroke, Fault


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


@pytest.mark.parametrize("where", ["env 2", "validate", "policy", "callback"])
def test_whatever_fails_is_raised_and_leaves_no_env_open(where: str):
    factory = CountingEnvs(faults={2: [Fault("raise_at_build")]} if where == "env 2" else None)

    def fail(*_: Any, **__: Any) -> Any:
        raise LookupError(where)

    class Failing(RandomPolicy):
        def __init__(self, *_: Any) -> None:
            fail()

    config = AlgorithmConfig().env_runners(num_envs_per_env_runner=3)
    if where == "callback":
        config = config.callbacks(on_sub_environment_created=fail)
    with pytest.raises(EnvBroke if where == "env 2" else LookupError, match=where):
        RolloutWorker(
            env_creator=lambda _: factory(),
            validate_env=fail if where == "validate" else None,
            config=config,
            default_policy_class=Failing if where == "policy" else RandomPolicy,
        )
    assert factory.made
    assert all(env.closed == 1 for env in factory.made)


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
        with pytest.raises(ValueError, match="none was taken over"):
            worker.set_weights(given)
        for name, array in worker.get_weights("first")["first"].items():
            np.testing.assert_array_equal(array, before["first"][name])


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


class TestTheMappingOfAnEnvWithOneAgent:
    def worker(self, **settings: Any) -> RolloutWorker:
        config = AlgorithmConfig().env_runners(rollout_fragment_length=6).multi_agent({"own"}, **settings)
        return RolloutWorker(env_creator=lambda _: MockEnv(3), default_policy_class=RandomPolicy, config=config)

    def test_episodes_know_the_policy_that_acts(self):
        seen: list[Any] = []

        def note(*, episode: Any, **_: Any) -> None:
            seen.append((episode.policy_for(), episode.agent_rewards))

        with self.worker(callback_functions={"on_episode_end": note}) as worker:
            worker.sample()
        assert seen == [("own", {("agent0", "own"): 3.0})] * 2

    def test_it_is_called_and_its_answer_must_be_the_policy_that_acts(self):
        calls: list[Any] = []

        def mapping(agent_id: Any, episode: Any, worker: Any) -> str:
            calls.append((agent_id, worker))
            return "own"

        with self.worker(policy_mapping_fn=mapping) as worker:
            assert worker.sample()["own"].count == 6
            assert calls == [("agent0", worker)]
            worker.set_policy_mapping_fn(lambda *_, **__: "other")
            with pytest.raises(KeyError, match="'other' for agent 'agent0'; in an env with one agent 'own' acts"):
                worker.sample()
            worker.set_policy_mapping_fn(mapping)
            assert worker.sample()["own"].count == 6


@pytest.mark.parametrize("agents", [0, 2])
def test_fragments_of_auto_are_the_share_of_as_many_workers_as_there_are(agents: int):
    config = AlgorithmConfig().env_runners(rollout_fragment_length="auto").training(train_batch_size=24)

    def create(context: Any) -> Any:
        return BasicMultiAgent(agents) if agents else MockEnv(100)

    with RolloutWorker(
        env_creator=create, default_policy_class=RandomPolicy, config=config, worker_index=1, num_workers=2
    ) as worker:
        assert worker.sample().env_steps() == worker.total_rollout_fragment_length == 12
        worker.num_workers = 3
        assert worker.sample().env_steps() == worker.total_rollout_fragment_length == 8
        assert worker.creation_args()["num_workers"] == worker.config.num_env_runners == 3
        with pytest.raises(ValueError, match="num_workers=-1"):
            worker.num_workers = -1
    assert config.num_env_runners == 0


def test_a_gpu_that_is_not_there_is_named_by_its_setting(monkeypatch: Any):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for index, setting in enumerate(("num_gpus", "num_gpus_per_env_runner")):
        with pytest.raises(RuntimeError, match=f"{setting}=1.0, but torch sees no CUDA device"):
            bare(config={setting: 1}, worker_index=index)
    bare(config={"num_gpus": 1, "_fake_gpus": True}).stop()
