"""A worker: how it is built, what it tells of itself, its policies and the fragments that it is asked for."""

import gc
import os
import weakref
from typing import Any

import pytest
from rw_toys import bare, mock, spaces_of

from mock_envs import MockEnv
from swath.rollout_workers import AlgorithmConfig, DefaultCallbacks, RolloutWorker, get_global_worker
from swath.rollout_workers.policy import RandomPolicy
from swath.testing.counting import CountingEnvs
from swath.testing.faults import EnvBroke, Fault


def test_sub_envs_are_made_each_with_a_context_of_its_own_then_validated_and_shown():
    seen: list[Any] = []

    class Shown(DefaultCallbacks):
        def on_sub_environment_created(self, *, env_context: Any, env_index: int, **kwargs: Any) -> None:
            seen.append(("shown", env_context.vector_index, env_index))

        def on_create_policy(self, *, policy_id: str, policy: Any) -> None:
            seen.append(("policy", policy_id, type(policy)))

    def create(context: Any) -> Any:
        seen.append(("made", context.vector_index, [*context["mine"]]))
        context["mine"].append(context.vector_index)
        return MockEnv(5, context)

    config = AlgorithmConfig().environment(env_config={"mine": []}).env_runners(num_envs_per_env_runner=2)
    with RolloutWorker(
        env_creator=create,
        validate_env=lambda env, context: seen.append(("checked", context.vector_index, context is env.config)),
        config=config.callbacks(Shown),
        default_policy_class=RandomPolicy,
        num_workers=2,
        worker_index=1,
        recreated_worker=True,
    ) as worker:
        sub_env = lambda i: [("made", i, []), ("checked", i, True), ("shown", i, i)]
        assert seen == [*sub_env(0), *sub_env(1), ("policy", "default_policy", RandomPolicy)]
        context = worker.env.config
        assert (context.worker_index, context.num_workers, context.recreated_worker) == (1, 2, True)
        told = worker.foreach_env_with_context(lambda env, ctx: (env.config is ctx, ctx.vector_index))
        assert told == [(True, 0), (True, 1)]
        assert worker.foreach_env(lambda env: env.episode_length) == [5, 5]
    assert config.env_config == {"mine": []}


@pytest.mark.parametrize("where", ["env 2", "validate", "policy", "callback"])
def test_whatever_fails_is_raised_and_leaves_no_env_open(where: str):
    factory = CountingEnvs(faults={2: [Fault("raise_at_build")]} if where == "env 2" else None)

    def fail(*_: Any, **__: Any) -> Any:
        raise LookupError(where)

    config = AlgorithmConfig().env_runners(num_envs_per_env_runner=3)
    if where == "callback":
        config.callbacks(on_sub_environment_created=fail)
    with pytest.raises(EnvBroke if where == "env 2" else LookupError, match=where):
        RolloutWorker(
            env_creator=lambda _: factory(),
            validate_env=fail if where == "validate" else None,
            config=config,
            default_policy_class=fail if where == "policy" else RandomPolicy,
        )
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
def test_which_workers_have_envs(index: int, num_workers: int, settings: Any, has_env: bool):
    spaces = tuple(spaces_of().values())
    with mock(config=settings, worker_index=index, num_workers=num_workers, spaces={"__env__": spaces}) as worker:
        assert [worker.env is None, worker.async_env is None] == [not has_env] * 2
        assert worker.get_spaces() == {"default_policy": spaces, "__env__": spaces}
        assert len(worker.foreach_env(lambda env: 1)) == has_env


def test_variables_are_put_into_the_environment_as_strings(monkeypatch: Any):
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
    calls: list[Any] = []
    seen: list[Any] = []

    def mapping(agent_id: Any, episode: Any, worker: Any) -> str:
        calls.append((agent_id, worker))
        return "own"

    def note(*, episode: Any, **_: Any) -> None:
        seen.append((episode.policy_for(), episode.agent_rewards))

    config = AlgorithmConfig().env_runners(rollout_fragment_length=5).multi_agent({"own"}, policy_mapping_fn=mapping)
    with mock(config=config.callbacks(on_episode_end=note)) as worker:
        assert worker.sample()["own"].count == 5
        assert calls == [("agent0", worker)]
        assert seen == [("own", {("agent0", "own"): 5.0})]
        worker.set_policy_mapping_fn(lambda *_, **__: "other")
        with pytest.raises(KeyError, match="'other' for agent 'agent0'; in an env with one agent 'own' acts"):
            worker.sample()
        worker.set_policy_mapping_fn(mapping)
        assert worker.sample()["own"].count == 5


def test_a_gpu_that_is_not_there_is_named_by_its_setting(monkeypatch: Any):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for index, setting in enumerate(("num_gpus", "num_gpus_per_env_runner")):
        with pytest.raises(RuntimeError, match=f"{setting}=1.0, but torch sees no CUDA device"):
            bare(config={setting: 1}, worker_index=index)
    bare(config={"num_gpus": 1, "_fake_gpus": True}).stop()
