"""Of the check-list: how a worker's policies learn, alone and as one of several ranks."""

import pickle

import numpy as np
import pytest
from addresses import free_url
from checklist_toys import DEFAULT, SMALL, alike, cartpole, learner, mock, shifted, two

import swath.rollout_workers as names
from swath.errors import Closed
from swath.rollout_workers import AlgorithmConfig, PGTorchPolicy, PPOTorchPolicy, WorkerSet


def learn_on_batch():
    with two(policies_to_train=["a"]) as worker:
        batch = worker.sample()
        before, weights = pickle.dumps(batch), worker.get_weights()
        both = batch.copy()
        both.policy_batches |= {"b": batch["a"], "gone": batch["a"]}
        info = worker.learn_on_batch(both)
        assert list(info) == ["a"]
        wanted = "learner_stats model custom_metrics num_agent_steps_trained num_grad_updates_lifetime"
        assert set(info["a"]) >= {*wanted.split(), "diff_num_grad_updates_vs_sampler_policy"}
        assert pickle.dumps(batch) == before
        assert alike(worker.get_weights("b"), {"b": weights["b"]})
        assert not alike(worker.get_weights("a"), {"a": weights["a"]})
        assert worker.policy_version == 1


def learn_on_batch_refuses():
    worker = learner()
    batch = worker.sample()
    worker.stop()
    with pytest.raises(Closed, match="learn_on_batch"):
        worker.learn_on_batch(batch)


def compute_gradients():
    with learner() as worker:
        batch, before = worker.sample(), worker.get_weights()
        gradients, info = worker.compute_gradients(batch)
        shapes = [parameter.shape for parameter in worker.get_policy().model.parameters()]
        assert [gradient.shape for gradient in gradients[DEFAULT]] == shapes
        assert not any(gradient.requires_grad for gradient in gradients[DEFAULT])
        assert (set(info), info["batch_count"]) == ({DEFAULT, "batch_count"}, 10)
        alone, stats = worker.compute_gradients(batch, single_agent=True)
        assert [gradient.shape for gradient in alone] == shapes
        assert "learner_stats" in stats
        assert alike(worker.get_weights(), before)
        worker.set_is_policy_to_train([])
        assert worker.compute_gradients(batch)[0] == {}


def compute_gradients_refuses():
    with learner() as worker, pytest.raises(ValueError, match="single_agent"):
        worker.compute_gradients(worker.sample().as_multi_agent("other"), single_agent=True)


def apply_gradients():
    with learner() as one, learner() as by_id, learner() as alone:
        batch = one.sample()
        gradients, _ = one.compute_gradients(batch)
        by_id.apply_gradients(gradients)
        alone.apply_gradients([gradient.numpy() for gradient in gradients[DEFAULT]])
        one.learn_on_batch(batch)
        assert alike(by_id.get_weights(), alone.get_weights())
        for name, array in one.get_weights()[DEFAULT].items():
            np.testing.assert_allclose(array, by_id.get_weights()[DEFAULT][name], rtol=1e-6)
        by_id.set_is_policy_to_train([])
        before = by_id.get_weights()
        by_id.apply_gradients(gradients)
        assert alike(by_id.get_weights(), before)


def apply_gradients_refuses():
    with learner() as worker:
        before = worker.get_weights()
        gradients = worker.compute_gradients(worker.sample())[0][DEFAULT]
        for error, wrong in (
            (KeyError, {"nobody": gradients}),
            (ValueError, gradients[1:]),
            (ValueError, [np.zeros(9), *gradients[1:]]),
        ):
            with pytest.raises(error):
                worker.apply_gradients(wrong)
            assert alike(worker.get_weights(), before)
            assert worker.policy_version == 0


def sample_and_learn():
    with learner() as worker:
        info, count = worker.sample_and_learn(10, 3, 4, ["advantages"])
        assert (count, worker.get_policy().num_grad_updates) == (10, 9), "three passes of 4, 4 and 2 rows"
        assert info[DEFAULT]["learner_stats"]["kl"] >= 0
        worker.sample_and_learn(10, None, 0, [])
        assert worker.get_policy().num_grad_updates == 10


def sample_and_learn_refuses():
    with learner() as worker:
        with pytest.raises(AssertionError, match=r"11.* 10 "):
            worker.sample_and_learn(11, None, None, [])
        assert worker.get_policy().num_grad_updates == 0


def setup_torch_data_parallel():
    where = free_url()

    def learn(worker):
        if worker.worker_index == 2:
            worker.set_weights(shifted(worker.get_weights()))
        before = worker.get_weights()
        worker.setup_torch_data_parallel(where, worker.worker_index - 1, 2, "gloo", timeout_s=60.0)
        size, begun = worker.get_policy().distributed_world_size, worker.get_weights()
        worker.learn_on_batch(worker.sample())
        worker.teardown_torch_data_parallel()
        return before, size, begun, worker.get_weights(), worker.get_policy().distributed_world_size

    own = AlgorithmConfig().update_from_dict(SMALL)
    options = {"env_creator": cartpole, "default_policy_class": PPOTorchPolicy, "config": own}
    with WorkerSet(**options, num_workers=2, backend="process", local_worker=False) as ranks:
        first, second = ranks.foreach_worker(learn)
    assert first[1] == second[1] == 2
    assert alike(first[0], first[2])
    assert alike(first[2], second[2])
    assert not alike(second[0], second[2])
    assert alike(first[3], second[3])
    assert not alike(first[2], first[3])
    assert first[4] == second[4] == 1


def setup_torch_data_parallel_refuses():
    with learner() as worker, mock() as drawing:
        with pytest.raises(ValueError, match="backend='mpi'"):
            worker.setup_torch_data_parallel(free_url(), 0, 1, "mpi")
        with pytest.raises(ValueError, match="RandomPolicy"):
            drawing.setup_torch_data_parallel(free_url(), 0, 1, "gloo")
        worker.setup_torch_data_parallel(free_url(), 0, 1, "gloo", timeout_s=60.0)
        with pytest.raises(RuntimeError, match="already"):
            worker.setup_torch_data_parallel(free_url(), 0, 1, "gloo")


def teardown_torch_data_parallel():
    with learner() as worker:
        worker.teardown_torch_data_parallel()
        for _ in range(2):
            worker.setup_torch_data_parallel(free_url(), 0, 1, "gloo", timeout_s=60.0)
            worker.teardown_torch_data_parallel()
        worker.setup_torch_data_parallel(free_url(), 0, 1, "gloo", timeout_s=60.0)
    with learner() as another:
        another.setup_torch_data_parallel(free_url(), 0, 1, "gloo", timeout_s=60.0)


def torch_policies():
    for policy in (PPOTorchPolicy, PGTorchPolicy):
        with learner(policy) as worker:
            assert "learner_stats" in worker.learn_on_batch(worker.sample())[DEFAULT]


def torch_policies_refuses():
    for name in ("PPOTF1Policy", "PPOTF2Policy", "PGTFPolicy"):
        with pytest.raises(AttributeError, match=name):
            getattr(names, name)
