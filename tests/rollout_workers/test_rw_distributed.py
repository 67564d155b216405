"""Ranks that average gradients, each in its own process."""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import SystemRandom

import numpy as np
import pytest
from rw_toys import batch_for, cartpole, learner, ppo, spaces_of

from swath.errors import WorkerLate
from swath.rollout_workers import AlgorithmConfig, PPOTorchPolicy, RandomPolicy, RolloutWorker
from swath.rollout_workers.policies.learning import join_ranks, leave_ranks, require_same
from toys import DEADLINE_S

PORTS = range(20_000, 32_000)
"""Below the ports that Linux assigns to new connections, so that no other process takes one by accident."""


def free_url():
    """Return a url at which no process listens."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port := SystemRandom().choice(PORTS)))
            return f"tcp://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder and the outputs of two processes; the second ends only after the first."""
    folder, urls = tmp_path_factory.mktemp("ranks"), [free_url() for _ in range(3)]
    code = f"import test_rw_distributed as these; these.act({{}}, {urls}, {str(folder)!r})"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    commands = [[sys.executable, "-c", code.format(rank)] for rank in range(2)]
    started = [subprocess.Popen(command, env=env, text=True, **pipes) for command in commands]
    outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    return folder, outputs


def act(rank, urls, folder):
    average(rank, urls[0], folder)
    work(rank, urls[1], folder)
    be_late(rank, urls[2], folder)


def average(rank, url, folder):
    policies = {"p": ppo(seed=rank, grad_clip=0.05)}
    join_ranks(policies, url, rank, 2, "gloo", DEADLINE_S)
    try:
        require_same(["p", "q"][: rank + 1], "policies in the batch")
    except ValueError as error:
        sys.stdout.write(str(error))
    gradients, _ = policies["p"].compute_gradients(batch_for(ppo(), seed=rank))
    np.savez(f"{folder}/gradients{rank}.npz", *[gradient.numpy() for gradient in gradients])
    leave_ranks(policies)


def test_gradients_are_the_mean_and_bounded_after_that_and_other_policies_refused_by_all(finished):
    folder, outputs = finished
    expected = r"different policies in the batch, all of them stop: rank 0: ['p']; rank 1: ['p', 'q']"
    assert [expected in text for text in outputs] == [True, True]
    alone = [ppo().compute_gradients(batch_for(ppo(), seed=rank))[0] for rank in range(2)]
    mean = [(first + second).numpy() / 2 for first, second in zip(*alone, strict=True)]
    norm = np.sqrt(sum((gradient**2).sum() for gradient in mean))
    assert norm > 0.05
    for rank in range(2):
        found = np.load(folder / f"gradients{rank}.npz")
        for number, gradient in zip(found.files, mean, strict=True):
            np.testing.assert_allclose(found[number], gradient * 0.05 / norm, rtol=1e-4, atol=1e-7)


def work(rank, url, folder):
    """Two workers whose envs are seeded differently: 4 updates, then 2 of 3 minibatches twice over."""
    config = AlgorithmConfig().env_runners(rollout_fragment_length=20, num_envs_per_env_runner=2)
    config.training(lr=0.01).debugging(seed=3)
    arguments = {"env_creator": cartpole, "default_policy_class": PPOTorchPolicy, "config": config}
    with RolloutWorker(worker_index=rank + 1, **arguments) as worker:
        worker.setup_torch_data_parallel(url, rank, 2, "gloo", timeout_s=DEADLINE_S)
        assert worker.get_policy().distributed_world_size == 2
        weights, batches = [worker.get_weights()["default_policy"]], [worker.sample() for _ in range(4)]
        for batch in batches:
            worker.learn_on_batch(batch)
        weights.append(worker.get_weights()["default_policy"])
        for _ in range(2):
            worker.sample_and_learn(40, 2, 16, ["advantages"])
        assert worker.get_policy().num_grad_updates == 4 + 2 * 2 * 3
        weights.append(worker.get_weights()["default_policy"])
    np.savez(f"{folder}/seen{rank}.npz", *[batch["obs"] for batch in batches])
    for number, first in enumerate(weights):
        np.savez(f"{folder}/weights{number}_{rank}.npz", **first)


def test_two_workers_that_learn_from_different_envs_have_the_same_weights_to_the_bit(finished):
    folder, _ = finished
    observations = [np.load(folder / f"seen{rank}.npz") for rank in range(2)]
    assert not any(np.array_equal(observations[0][name], observations[1][name]) for name in observations[0].files)
    weights = [[np.load(folder / f"weights{number}_{rank}.npz") for rank in range(2)] for number in range(3)]
    for first, second in weights:
        assert all(first[name].tobytes() == second[name].tobytes() for name in first.files)
    for (before, _), (after, _) in pairwise(weights):
        assert any(not np.array_equal(before[name], after[name]) for name in before.files)


def be_late(rank, url, folder):
    """Rank 1 does not come before the other has ended."""
    policies = {"p": ppo()}
    join_ranks(policies, url, rank, 2, "gloo", 5)  # for joining, too
    if rank == 1:
        sys.stdin.read()
    else:
        with pytest.raises(WorkerLate) as raised:
            policies["p"].learn_on_batch(batch_for(ppo()))
        Path(folder, "late.txt").write_text(str(raised.value))
    leave_ranks(policies)


def test_a_rank_that_waits_in_vain_names_the_missing_ranks_and_the_way_out(finished):
    text = (finished[0] / "late.txt").read_text()
    assert "Ranks 1 failed to pass" in text
    assert "teardown_torch_data_parallel() on all, then setup_torch_data_parallel() again" in text


def test_invalid_places_and_policies_are_refused_before_joining():
    place = {"url": "tcp://127.0.0.1:1", "world_rank": 0, "world_size": 2, "backend": "gloo", "timeout_s": 60}
    policies = {"p": ppo()}
    for wrong in ({"backend": "mpi"}, {"world_rank": 2}, {"timeout_s": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            join_ranks(policies, **{**place, **wrong})
    with pytest.raises(ValueError, match="policy 'r' is of type RandomPolicy"):
        join_ranks({**policies, "r": RandomPolicy(*spaces_of().values(), {})}, **place)


def test_a_process_is_in_one_group_at_a_time_which_takes_in_no_other_policy():
    with learner() as worker:
        state = worker.get_state()
        state["policy_states"]["late"] = state["policy_states"]["default_policy"]
        for _ in range(2):
            worker.setup_torch_data_parallel(free_url(), 0, 1, "gloo")
            with pytest.raises(RuntimeError, match=r"in a torch\.distributed group already"):
                worker.setup_torch_data_parallel(free_url(), 0, 1, "gloo")
            for add in (lambda: worker.add_policy("late", PPOTorchPolicy), lambda: worker.set_state(state)):
                with pytest.raises(RuntimeError, match=r"call teardown_torch_data_parallel\(\) on each"):
                    add()
            worker.learn_on_batch(worker.sample())
            worker.teardown_torch_data_parallel()
        worker.add_policy("late", PPOTorchPolicy)
