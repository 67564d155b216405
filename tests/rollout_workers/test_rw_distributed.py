"""Ranks that average gradients, each in a process of its own."""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

import numpy as np
import pytest
from checklist_toys import cartpole, learner
from policy_batches import batch_for, ppo

from swath.errors import WorkerLate
from swath.rollout_workers import AlgorithmConfig, PPOTorchPolicy, RandomPolicy, RolloutWorker
from swath.rollout_workers.worker.learning import join_ranks, leave_ranks, require_same

HERE = Path(__file__).parent
PORTS = range(20_000, 32_000)
"""Below those that Linux gives to whoever opens a connection: nobody takes one by accident until it is used."""


def free_url():
    """One that nobody listens at."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port := SystemRandom().choice(PORTS)))
            return f"tcp://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What two processes wrote into a folder, and said, when both ran all that follows.

    The second comes to its end only when the first has ended.
    """
    folder, urls = tmp_path_factory.mktemp("ranks"), [free_url() for _ in range(5)]
    code = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import test_rw_distributed as these
rank = int(sys.argv[1])
these.average(rank, {urls[1]!r}, {urls[4]!r}, {str(folder)!r})
these.work(rank, {urls[2]!r}, {str(folder)!r})
these.be_late(rank, {urls[3]!r}, {str(folder)!r})
"""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # two processes with threads for each core would fight
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=100)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], told
    return folder, told


def average(rank, url, other_url, folder):
    policies = {"free": ppo(seed=rank), "bounded": ppo(seed=rank, grad_clip=0.05)}
    join_ranks(policies, url, rank, 2, "gloo", 60)
    try:
        require_same(["p", "q"][: rank + 1], "policies in the batch")
    except ValueError as error:
        sys.stdout.write(str(error))
    for name, policy in policies.items():
        gradients, _ = policy.compute_gradients(batch_for(ppo(), seed=rank))
        np.savez(f"{folder}/{name}{rank}.npz", *[gradient.numpy() for gradient in gradients])
    leave_ranks(policies)
    try:
        join_ranks({"other": ppo(model={"fcnet_hiddens": [4 + rank]})}, other_url, rank, 2, "gloo", 60)
    except ValueError as error:
        sys.stdout.write("other shapes" if "different policies" in str(error) else str(error))


def test_gradients_are_the_mean_and_bounded_after_that(done):
    folder, told = done
    assert ["other shapes" in text for text in told] == [True, True]
    expected = r"different policies in the batch, none of them goes on: rank 0: ['p']; rank 1: ['p', 'q']"
    assert [expected in text for text in told] == [True, True]
    policy = ppo()
    alone = [policy.compute_gradients(batch_for(ppo(), seed=rank))[0] for rank in range(2)]
    mean = [(one + other).numpy() / 2 for one, other in zip(*alone, strict=True)]
    norm = np.sqrt(sum((gradient**2).sum() for gradient in mean))
    assert norm > 0.05
    for rank in range(2):
        for name, factor in (("free", 1.0), ("bounded", 0.05 / norm)):
            found = np.load(folder / f"{name}{rank}.npz")
            for number, gradient in zip(found.files, mean, strict=True):
                np.testing.assert_allclose(found[number], gradient * factor, rtol=1e-4, atol=1e-7)


def work(rank, url, folder):
    """Two workers whose envs are seeded differently: 8 updates, then 3 of 3 minibatches twice over."""
    config = AlgorithmConfig().env_runners(rollout_fragment_length=20, num_envs_per_env_runner=2)
    config.training(lr=0.01).debugging(seed=3)
    made = {"env_creator": cartpole, "default_policy_class": PPOTorchPolicy, "config": config}
    with RolloutWorker(worker_index=rank + 1, **made) as worker:
        worker.setup_torch_data_parallel(url, rank, 2, "gloo", timeout_s=60)
        begun, batches = worker.get_weights()["default_policy"], [worker.sample() for _ in range(8)]
        for batch in batches:
            worker.learn_on_batch(batch)
        learnt = worker.get_weights()["default_policy"]
        for _ in range(3):
            worker.sample_and_learn(40, 2, 16, ["advantages"])
        updates = worker.get_policy().num_grad_updates
        passed = worker.get_weights()["default_policy"]
    for name, weights in (("begun", begun), ("learnt", learnt), ("passed", passed)):
        np.savez(f"{folder}/worker_{name}{rank}.npz", **weights)
    np.savez(f"{folder}/worker_seen{rank}.npz", seen=np.stack([batch["obs"] for batch in batches]), updates=updates)


def test_two_workers_that_learn_from_different_envs_have_the_same_weights_to_the_bit(done):
    folder, _ = done
    begun, learnt, passed, seen = (
        [np.load(folder / f"worker_{name}{rank}.npz") for rank in range(2)]
        for name in ("begun", "learnt", "passed", "seen")
    )
    assert not any(np.array_equal(*batches) for batches in zip(seen[0]["seen"], seen[1]["seen"], strict=True))
    assert [int(each["updates"]) for each in seen] == [8 + 3 * 2 * 3] * 2
    for first, second in (begun, learnt, passed):
        assert all(first[name].tobytes() == second[name].tobytes() for name in first.files)
    for before, after in ((begun[0], learnt[0]), (learnt[0], passed[0])):
        assert any(not np.array_equal(before[name], after[name]) for name in before.files)


def be_late(rank, url, folder):
    """Rank 1 does not come before the other has ended."""
    policies = {"p": ppo()}
    join_ranks(policies, url, rank, 2, "gloo", 5)
    if rank == 1:
        sys.stdin.read()
    else:
        with pytest.raises(WorkerLate) as raised:
            policies["p"].learn_on_batch(batch_for(ppo()))
        Path(folder, "late.txt").write_text(str(raised.value))
    leave_ranks(policies)


def test_a_rank_that_waits_in_vain_says_for_whom_and_what_to_do(done):
    folder, _ = done
    text = (folder / "late.txt").read_text()
    assert "Ranks 1 failed to pass" in text
    assert "teardown_torch_data_parallel() on all, then setup_torch_data_parallel() again" in text


PLACE = {"url": "tcp://127.0.0.1:1", "world_rank": 0, "world_size": 2, "backend": "gloo", "timeout_s": 60}
WRONG = [({"backend": "mpi"}, "backend='mpi'"), ({"world_rank": 2}, "world_rank=2"), ({"timeout_s": 0}, "timeout_s=0")]


@pytest.mark.parametrize(("wrong", "words"), WRONG)
def test_a_place_must_be_one(wrong, words):
    with pytest.raises(ValueError, match=words):
        join_ranks({"p": ppo()}, **{**PLACE, **wrong})


def test_policies_without_torch_are_refused_before_joining():
    policy = ppo()
    drawn = RandomPolicy(policy.observation_space, policy.action_space, {})
    with pytest.raises(ValueError, match="policy 'r' is of type RandomPolicy"):
        join_ranks({"p": policy, "r": drawn}, **PLACE)


def test_a_process_is_in_one_group_at_a_time_and_one_rank_alone_is_a_group():
    policies = {"p": ppo()}
    for _ in range(2):
        join_ranks(policies, free_url(), 0, 1, "gloo", 60)
        with pytest.raises(RuntimeError, match=r"in a torch\.distributed group already"):
            join_ranks(policies, free_url(), 0, 1, "gloo", 60)
        policies["p"].learn_on_batch(batch_for(policies["p"]))
        leave_ranks(policies)


def test_a_rank_takes_in_no_policy_that_the_others_would_not_have():
    with learner() as worker:
        worker.setup_torch_data_parallel(free_url(), 0, 1, "gloo")
        state = worker.get_state()
        state["policy_states"]["late"] = state["policy_states"]["default_policy"]
        for add in (lambda: worker.add_policy("late", PPOTorchPolicy), lambda: worker.set_state(state)):
            with pytest.raises(RuntimeError, match=r"call teardown_torch_data_parallel\(\) on each"):
                add()
            assert list(worker.policy_map) == ["default_policy"]
        worker.teardown_torch_data_parallel()
        worker.add_policy("late", PPOTorchPolicy)
