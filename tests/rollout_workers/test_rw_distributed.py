"""Ranks that average gradients, each in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from addresses import free_url
from policy_batches import batch_for, ppo

from swath.errors import RemoteFailure, WorkerLate
from swath.rollout_workers import AlgorithmConfig, DefaultCallbacks, PPOTorchPolicy, RandomPolicy, RolloutWorker
from swath.rollout_workers.distributed import Place, Ranks
from swath.rollout_workers.policies.epochs import Passes, learn_in_passes

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What two processes wrote into a folder, and said, when both ran all that follows.

    The second comes to its end only when the first has ended.
    """
    folder, urls = tmp_path_factory.mktemp("ranks"), [free_url() for _ in range(6)]
    code = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import test_rw_distributed as these
rank = int(sys.argv[1])
these.learn(rank, {urls[0]!r}, {str(folder)!r})
these.average(rank, {urls[1]!r}, {str(folder)!r})
these.fail(rank, {urls[2]!r}, {str(folder)!r})
these.work(rank, {urls[3]!r}, {str(folder)!r})
these.sample_badly(rank, {urls[4]!r}, {str(folder)!r})
these.be_late(rank, {urls[5]!r}, {str(folder)!r})
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


def learn(rank, url, folder):
    policies = {"p": ppo(seed=rank), "q": ppo(seed=10 + rank)}
    group = Ranks.join(Place(url, rank, 2, "gloo", 60), policies)
    begun = policies["p"].get_weights()
    batches = [batch_for(ppo(), seed=10 * rank + i, n=30 + 20 * rank) for i in range(3)]
    for batch in batches:
        for policy in group.require_same(lambda: {"q": policies["q"], "p": policies["p"]}).values():
            policy.learn_on_batch(batch)
    learn_in_passes(policies["p"], batches[0], Passes(2, 20), np.random.default_rng(rank))
    try:
        group.require_same(lambda: dict.fromkeys(["p", "q"][: rank + 1]))
    except ValueError as error:
        sys.stdout.write(str(error))
    assert policies["p"].distributed_world_size == 2
    group.leave()
    group.leave()
    assert policies["p"].distributed_world_size == 1
    np.savez(f"{folder}/begun{rank}.npz", **begun)
    np.savez(f"{folder}/p{rank}.npz", **policies["p"].get_weights())
    np.savez(f"{folder}/q{rank}.npz", **policies["q"].get_weights())


def test_two_ranks_end_with_equal_weights(done):
    folder, told = done
    for policy_id in ("begun", "p", "q"):
        first, second = (np.load(folder / f"{policy_id}{rank}.npz") for rank in range(2))
        assert all(np.array_equal(first[name], second[name]) for name in first.files)
    begun, ended = np.load(folder / "begun0.npz"), np.load(folder / "p0.npz")
    assert all(np.array_equal(begun[name], weight) for name, weight in ppo(seed=0).get_weights().items())
    assert not all(np.array_equal(begun[name], ended[name]) for name in begun.files)
    expected = r"different policies in the batch, none of them goes on: rank 0: ['p']; rank 1: ['p', 'q']"
    assert [expected in text for text in told] == [True, True]


def average(rank, url, folder):
    policies = {"free": ppo(), "bounded": ppo(grad_clip=0.05)}
    group = Ranks.join(Place(url, rank, 2, "gloo", 60), policies)
    for name, policy in policies.items():
        gradients, _ = policy.compute_gradients(batch_for(ppo(), seed=rank))
        np.savez(f"{folder}/{name}{rank}.npz", *[gradient.numpy() for gradient in gradients])
    try:
        group.include({"other": ppo(model={"fcnet_hiddens": [4 + rank]})})
    except ValueError as error:
        sys.stdout.write("other shapes" if "different policies" in str(error) else str(error))
    group.leave()


def test_gradients_are_the_mean_and_bounded_after_that(done):
    folder, told = done
    assert ["other shapes" in text for text in told] == [True, True]
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


class Fragile(PPOTorchPolicy):
    """Its loss, its numbers, or whoever listens to it, raise where they are told to."""

    broken = ""

    def loss(self, model, dist_class, train_batch):
        self.maybe("loss")
        return super().loss(model, dist_class, train_batch)

    def stats(self, train_batch):
        self.maybe("stats")
        return super().stats(train_batch)

    def maybe(self, place):
        if self.broken == place:
            raise ArithmeticError(f"the {place} broke")


class Listening(DefaultCallbacks):
    def on_learn_on_batch(self, *, policy, train_batch, result, **_):
        policy.maybe("callback")


def fail(rank, url, folder):
    """Rank 1 raises in one place after another; both learn after each time."""
    policy, batch = ppo(cls=Fragile, seed=rank), batch_for(ppo(), seed=rank)
    policy.callbacks = Listening()
    group = Ranks.join(Place(url, rank, 2, "gloo", 60), {"p": policy})
    odd = Passes(1, 20, ("rewards",) if rank == 0 else ("missing",))
    attempts = {
        "loss": lambda: policy.learn_on_batch(batch),
        "stats": lambda: policy.learn_on_batch(batch),
        "callback": lambda: learn_in_passes(policy, batch, Passes(2, 20)),
        "gradients": lambda: policy.compute_gradients(batch if rank == 0 else batch[0:0]),
        "passes": lambda: learn_in_passes(policy, batch, odd),
        "ids": lambda: group.require_same(lambda: {"p": policy} if rank == 0 else {}["nowhere"]),
    }
    told = {}
    for place, attempt in attempts.items():
        before, policy.broken = policy.get_weights(), place if rank == 1 else ""
        try:
            attempt()
        except Exception as error:
            told[place] = [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
        told[place].append(all(np.array_equal(before[name], now) for name, now in policy.get_weights().items()))
        policy.broken = ""
        policy.learn_on_batch(batch)
    group.leave()
    Path(folder, f"failed{rank}.json").write_text(json.dumps(told))
    np.savez(f"{folder}/after{rank}.npz", **policy.get_weights())


def test_where_one_rank_raises_all_do_at_once_and_go_on_together(done):
    folder, _ = done
    mine, others = (json.loads((folder / f"failed{rank}.json").read_text()) for rank in (1, 0))
    expected = {
        "loss": ("ArithmeticError", "the loss broke"),
        "stats": ("ArithmeticError", "the stats broke"),
        "callback": ("ArithmeticError", "the callback broke"),
        "gradients": ("ValueError", "there is nothing to learn from"),
        "passes": ("KeyError", "standardize_fields names ['missing']"),
        "ids": ("KeyError", "nowhere"),
    }
    assert mine.keys() == others.keys() == expected.keys()
    for place, (kind, text) in expected.items():
        name, said, note, untouched = mine[place]
        assert (name, text in said, untouched) == (kind, True, True)
        assert "one of several ranks" in note
        name, said, untouched = others[place]
        assert (name, untouched) == ("RemoteFailure", True)
        assert f"rank 1 raised while the ranks were to learn as one: {kind}: " in said
        assert text in said
    first, second = (np.load(folder / f"after{rank}.npz") for rank in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first.files)


def work(rank, url, folder):
    """Two workers whose envs are seeded differently: 20 updates, then 6 of 3 minibatches twice over."""
    config = AlgorithmConfig().env_runners(rollout_fragment_length=20, num_envs_per_env_runner=2)
    with RolloutWorker(
        env_creator=lambda _: gym.make("CartPole-v1"),
        default_policy_class=PPOTorchPolicy,
        config=config.training(lr=0.01).debugging(seed=3),
        worker_index=rank + 1,
    ) as worker:
        worker.setup_torch_data_parallel(url, rank, 2, "gloo", timeout_s=60)
        begun, batches = worker.get_weights()["default_policy"], [worker.sample() for _ in range(20)]
        for batch in batches:
            worker.learn_on_batch(batch)
        learnt = worker.get_weights()["default_policy"]
        for _ in range(6):
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
    assert [int(each["updates"]) for each in seen] == [20 + 6 * 2 * 3] * 2
    for first, second in (begun, learnt, passed):
        assert all(first[name].tobytes() == second[name].tobytes() for name in first.files)
    for before, after in ((begun[0], learnt[0]), (learnt[0], passed[0])):
        assert any(not np.array_equal(before[name], after[name]) for name in before.files)


class Tripping(gym.Wrapper):
    """Raises at a step."""

    def __init__(self, env, at):
        super().__init__(env)
        self.left = at

    def step(self, action):
        self.left -= 1
        if self.left == 0:
            raise ArithmeticError("the env tripped")
        return super().step(action)


def sample_badly(rank, url, folder):
    """Rank 1's env raises in its second batch; then both learn on."""
    config = AlgorithmConfig().env_runners(rollout_fragment_length=10).training(model={"fcnet_hiddens": [4]})
    with RolloutWorker(
        env_creator=lambda _: Tripping(gym.make("CartPole-v1"), 15 if rank == 1 else 0),
        default_policy_class=PPOTorchPolicy,
        config=config,
    ) as worker:
        worker.setup_torch_data_parallel(url, rank, 2, "gloo", timeout_s=60)
        told = []
        for size in (10, 10, 10, 11 - rank, 10):
            before = worker.get_policy().num_grad_updates
            try:
                worker.sample_and_learn(size, 1, 0, [])
            except (ArithmeticError, AssertionError, RemoteFailure) as error:
                told.append([type(error).__name__, str(error)])
                assert worker.get_policy().num_grad_updates == before
        np.savez(f"{folder}/tripped{rank}.npz", **worker.get_weights()["default_policy"])
    Path(folder, f"tripped{rank}.json").write_text(json.dumps(told))


def test_a_rank_whose_sampling_raises_keeps_nobody_waiting(done):
    folder, _ = done
    first, second = (json.loads((folder / f"tripped{rank}.json").read_text()) for rank in range(2))
    assert [name for name, _ in first] == ["RemoteFailure", "AssertionError"]
    assert [name for name, _ in second] == ["ArithmeticError", "RemoteFailure"]
    assert "rank 1 raised while the ranks were to learn as one: ArithmeticError: the env tripped" in first[0][1]
    assert "rank 0 raised while the ranks were to learn as one: AssertionError: expected_batch_size=11" in second[1][1]
    weights = [np.load(folder / f"tripped{rank}.npz") for rank in range(2)]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0].files)


def be_late(rank, url, folder):
    """Rank 1 does not come before the other has ended."""
    group = Ranks.join(Place(url, rank, 2, "gloo", 5), {"p": ppo()})
    if rank == 1:
        sys.stdin.read()
    else:
        with pytest.raises(WorkerLate) as raised:
            group.require_same(lambda: {"p": None})
        Path(folder, "late.json").write_text(json.dumps([str(raised.value), raised.value.workers]))
    group.leave()


def test_a_rank_that_waits_in_vain_says_for_whom_and_what_to_do(done):
    folder, _ = done
    text, workers = json.loads((folder / "late.json").read_text())
    assert workers == [1]
    assert "rank 0 has waited timeout_s=5 for ranks [1] to learn with it" in text
    assert "teardown_torch_data_parallel() on all ranks, then setup_torch_data_parallel() again" in text


def test_a_place_must_be_one():
    for wrong, words in (
        ({"backend": "mpi"}, "backend='mpi'"),
        ({"rank": 2}, "world_rank=2"),
        ({"timeout_s": 0}, "timeout_s=0"),
    ):
        with pytest.raises(ValueError, match=words):
            Place(**{"url": "tcp://127.0.0.1:1", "rank": 0, "size": 2, "backend": "gloo", **wrong})


def test_policies_without_torch_and_devices_out_of_reach_are_refused_before_joining():
    place = Place("tcp://127.0.0.1:1", 0, 2, "gloo")
    policy = ppo()
    drawn = RandomPolicy(policy.observation_space, policy.action_space, {})
    with pytest.raises(ValueError, match="policy 'r' is of type RandomPolicy"):
        Ranks.join(place, {"p": policy, "r": drawn})
    with pytest.raises(ValueError, match="backend='nccl' cannot reach policy 'p' on cpu"):
        Ranks.join(Place("tcp://127.0.0.1:1", 0, 2, "nccl"), {"p": policy})


def test_a_process_is_in_one_group_at_a_time_and_one_rank_alone_is_a_group():
    policy, place = ppo(), Place(free_url(), 0, 1, "gloo", 60)
    group = Ranks.join(place, {"p": policy})
    try:
        with pytest.raises(RuntimeError, match=r"in a torch\.distributed group already"):
            Ranks.join(place, {"p": policy})
        assert policy.learn_on_batch(batch_for(policy))["num_grad_updates_lifetime"] == 1
    finally:
        group.leave()
    Ranks.join(Place(free_url(), 0, 1, "gloo", 60), {"p": policy}).leave()
