"""Sub-envs in processes of their own."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampling_toys import Foreseen, counting_worker

from swath.errors import WorkerLost
from swath.rollout_workers import DefaultCallbacks, EnvContext, RolloutWorker
from swath.testing.counting_env import Counting, CountingEnv
from swath.testing.faults import EnvBroke, Fault
from swath.testing.script import Script

B, F = 3, 4
SHORT = Counting(script=Script((3, 5, 1, 4)))


def remote(path: Path, faults: Any = (), **settings: Any) -> RolloutWorker:
    """A worker whose sub-env 1 has faults, where it lives for the first time."""

    def create(context: EnvContext) -> Any:
        mark = path / f"made_{context.vector_index}"
        faulty = context.vector_index == 1 and not mark.exists()
        mark.touch()
        return CountingEnv(context.vector_index, SHORT, faults if faulty else ())

    settings = {"delay_between_sub_environment_restarts_s": 0.0, **settings}
    settings |= {"num_envs_per_env_runner": B, "rollout_fragment_length": F, "remote_worker_envs": True}
    return RolloutWorker(env_creator=create, default_policy_class=Foreseen, config=settings)


def test_they_give_the_same_rows_and_are_elsewhere(tmp_path: Path):
    shown: list[Any] = []

    class Shown(DefaultCallbacks):
        def on_sub_environment_created(self, *, env_context: Any, env_index: Any, **kwargs: Any) -> None:
            shown.append((env_context.remote, env_index))

    with remote(tmp_path, callbacks_class=Shown) as worker:
        batches = [worker.sample() for _ in range(3)]
        pids = worker.foreach_env(lambda env: os.getpid())
        marks = worker.foreach_env_with_context(lambda env, context: (env.mark.env, context.vector_index))
    assert shown == [(True, env) for env in range(B)]
    assert len({*pids, os.getpid()}) == B + 1
    assert marks == [(env, env) for env in range(B)]
    here, _ = counting_worker(SHORT)
    with here:
        for batch in batches:
            for name, column in here.sample().items():
                np.testing.assert_array_equal(batch[name], column, err_msg=name)


@pytest.mark.parametrize(("kind", "error"), [("raise", EnvBroke), ("kill", WorkerLost)])
def test_one_that_raises_or_dies_has_failed_alone(tmp_path: Path, kind: Any, error: Any):
    with remote(tmp_path, [Fault(kind, step=2)]) as worker:
        with pytest.raises(error):
            worker.sample()
        batches = [worker.sample()]
        assert worker.counters["episodes_faulty"] == 1
    assert [len(batch) for batch in batches] == [B * F]
    for env in (0, 2):
        rows = [mark[1:] for batch in batches for mark in batch["obs"].tolist() if mark[0] == env]
        assert rows[0] == [0, 0]


def test_with_restart_collection_goes_on(tmp_path: Path):
    with remote(tmp_path, [Fault("kill", episode=2, step=2)], restart_failed_sub_environments=True) as worker:
        assert [len(worker.sample()) for _ in range(3)] == [B * F] * 3
        assert worker.counters["sub_env_restarts"] == 1


def test_what_the_creator_raises_there_is_raised_here():
    def create(context: EnvContext) -> Any:
        raise LookupError(f"sub-env {context.vector_index}")

    with pytest.raises(LookupError, match="sub-env 0"):
        RolloutWorker(env_creator=create, default_policy_class=Foreseen, config={"gym_env_vectorize_mode": "async"})
