"""Methods of a `RolloutWorker` for its policies: what each does and refuses, where no other test says it."""

import pickle

import pytest
from checklist_toys import DEFAULT, alike, bare, learner, spaces_of, two

import swath.rollout_workers as names
from swath.errors import Closed
from swath.rollout_workers import PGTorchPolicy, RandomPolicy

REFUSED_ADDITIONS = (
    (KeyError, {"policy_id": DEFAULT}),
    (ValueError, {"policy_cls": None}),
    (ValueError, {"policy": object()}),
    (ValueError, {"module_spec": 1}),
    (ValueError, {"policy_mapping_fn": 3}),
    (TypeError, {"policies_to_train": "new"}),
)


def test_add_policy_refuses():
    with bare() as worker:
        maps = (worker.policy_map, worker.policy_dict, worker.filters, worker.preprocessors)
        before = worker.policy_mapping_fn, worker.is_policy_to_train
        for error, wrong in REFUSED_ADDITIONS:
            with pytest.raises(error):
                worker.add_policy(**{"policy_id": "new", "policy_cls": RandomPolicy, **spaces_of(), **wrong})
            assert [list(held) for held in maps] == [[DEFAULT]] * 4
            assert (worker.policy_mapping_fn, worker.is_policy_to_train) == before


def test_remove_policy_refuses():
    with two() as worker:
        with pytest.raises(ValueError, match="nobody"):
            worker.remove_policy(policy_id="nobody")
        with pytest.raises(ValueError, match="policy_mapping_fn=3"):
            worker.remove_policy(policy_id="a", policy_mapping_fn=3)
        assert list(worker.policy_map) == ["a", "b"]


def test_get_policy():
    with two() as worker:
        assert worker.get_policy("b") is worker.policy_map["b"]
        assert worker.get_policy() is worker.get_policy("nobody") is None


def test_for_policy():
    with two() as worker:
        assert worker.for_policy(lambda policy, n: (policy, n), "b", n=2) == (worker.policy_map["b"], 2)


def test_for_policy_refuses():
    with two() as worker, pytest.raises(KeyError, match=DEFAULT):
        worker.for_policy(lambda policy: policy)


def test_foreach_policy():
    with two() as worker:
        found = worker.foreach_policy(lambda policy, pid, n: (policy, pid, n), n=2)
        assert found == [(worker.policy_map[pid], pid, 2) for pid in ("a", "b")]


def test_foreach_policy_to_train():
    with two(policies_to_train=["b"]) as worker:
        assert worker.foreach_policy_to_train(lambda policy, pid, n: (pid, n), n=2) == [("b", 2)]


def test_get_policies_to_train():
    asked = []
    with two(policies_to_train=lambda pid, batch=None: asked.append(batch) or pid == "a") as worker:
        assert worker.get_policies_to_train("batch") == {"a"}
        assert set(asked) == {"batch"}
    with two() as worker:
        assert worker.get_policies_to_train() == {"a", "b"}
        assert worker.is_policy_to_train is None


def test_set_is_policy_to_train():
    with two() as worker:
        for given in (["b"], {"b"}, ("b",), lambda pid, batch=None: pid == "b"):
            worker.set_is_policy_to_train(["a"])
            worker.set_is_policy_to_train(given)
            assert worker.get_policies_to_train() == {"b"}


def test_set_is_policy_to_train_refuses():
    with two(policies_to_train=["b"]) as worker:
        for wrong in ("a", None, 3):
            with pytest.raises(TypeError):
                worker.set_is_policy_to_train(wrong)
            assert worker.get_policies_to_train() == {"b"}


def test_set_policy_mapping_fn_refuses():
    with two() as worker:
        before = worker.policy_mapping_fn
        with pytest.raises(ValueError, match="policy_mapping_fn=3"):
            worker.set_policy_mapping_fn(3)
        assert worker.policy_mapping_fn is before


def test_get_weights_refuses():
    with two() as worker, pytest.raises(KeyError, match="nobody"):
        worker.get_weights(["a", "nobody"])


def test_get_global_vars():
    with bare() as worker:
        told = worker.get_global_vars()
        assert told == {"timestep": 0, "num_grad_updates_per_policy": {}}
        told["num_grad_updates_per_policy"]["a"] = 1
        assert worker.get_global_vars()["num_grad_updates_per_policy"] == {}


def test_set_global_vars():
    with two(policies_to_train=["b"]) as worker:
        worker.set_global_vars({"timestep": 9, "num_grad_updates_per_policy": {"b": 4}})
        steps = lambda policy, pid: (policy.global_timestep, policy.num_grad_updates)
        assert worker.foreach_policy(steps) == [(0, 0), (9, 4)]
        worker.set_global_vars({"timestep": 11}, policy_ids=["a"])
        assert worker.foreach_policy(steps) == [(11, 0), (9, 4)]
        assert worker.get_global_vars() == {"timestep": 11, "num_grad_updates_per_policy": {"b": 4}}


def test_set_global_vars_refuses():
    with two() as worker:
        with pytest.raises(KeyError, match="nobody"):
            worker.set_global_vars({"timestep": 9}, policy_ids=["a", "nobody"])
        assert worker.get_global_vars()["timestep"] == worker.get_policy("a").global_timestep == 0


def test_policies_as_tuples():
    given = {"a": (PGTorchPolicy, None, None, {"gamma": 0.5}), "b": (PGTorchPolicy, None, None, {})}
    with two(policies=given) as worker:
        assert [policy.config["gamma"] for policy in worker.policy_map.values()] == [0.5, 0.99]


def test_mapping_without_worker():
    for mapping in (lambda agent_id, episode: "b", lambda agent_id, episode, worker: "b"):
        with two(policy_mapping_fn=mapping) as worker:
            assert set(worker.sample().policy_batches) == {"b"}


def test_learn_on_batch():
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


def test_learn_on_batch_refuses():
    worker = learner()
    batch = worker.sample()
    worker.stop()
    with pytest.raises(Closed, match="learn_on_batch"):
        worker.learn_on_batch(batch)


def test_compute_gradients_refuses():
    with learner() as worker, pytest.raises(ValueError, match="single_agent"):
        worker.compute_gradients(worker.sample().as_multi_agent("other"), single_agent=True)


def test_sample_and_learn_refuses():
    with learner() as worker:
        with pytest.raises(AssertionError, match=r"11.* 10 "):
            worker.sample_and_learn(11, None, None, [])
        for epochs, size in ((0, None), (1, -1)):
            with pytest.raises(ValueError, match="sgd"):
                worker.sample_and_learn(10, epochs, size, [])
        assert worker.get_policy().num_grad_updates == 0


def test_torch_policies_refuses():
    for name in ("PPOTF1Policy", "PPOTF2Policy", "PGTFPolicy"):
        with pytest.raises(AttributeError, match=name):
            getattr(names, name)
