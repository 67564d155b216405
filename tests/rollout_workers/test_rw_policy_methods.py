"""Methods of a `RolloutWorker` for its policies: what each does and refuses, where no other test says it."""

import pickle

import numpy as np
import pytest
from rw_toys import DEFAULT, REFUSED_POLICIES, alike, bare, learner, shifted, spaces_of, two

from swath.errors import NoEffectWarning
from swath.rollout_workers import MeanStdFilter, PPOTorchPolicy, RandomPolicy, SampleBatch

A_OF_TWO = SampleBatch(obs=[1]).as_multi_agent("a")
REFUSED = {
    **REFUSED_POLICIES,
    "an unknown id is called": (lambda w: w.for_policy(lambda policy: policy), KeyError, DEFAULT),
    "weights of an unknown id": (lambda w: w.get_weights(["a", "unknown"]), KeyError, "unknown"),
    "weights": (lambda w: w.set_weights({**shifted(w.get_weights()), "b": {}}, {"timestep": 3}, 4), ValueError, "fit"),
    "variables of an unknown id": (lambda w: w.set_global_vars({"timestep": 9}, ["a", "unknown"]), KeyError, "unknown"),
    "a dict to learn from": (lambda w: w.learn_on_batch({}), TypeError, "dict; give a SampleBatch"),
    "gradients of others": (lambda w: w.compute_gradients(A_OF_TWO, single_agent=True), ValueError, "single_agent"),
    "gradients of an unknown id": (lambda w: w.apply_gradients({"unknown": [1]}), KeyError, "unknown"),
    "a number of gradients": (lambda w: w.apply_gradients({"b": [1]}), ValueError, "gradients"),
    "not finite gradients": (lambda w: w.apply_gradients({"b": not_finite(w)}), FloatingPointError, "not finite"),
    "no filters": (lambda w: w.sync_filters({}), AssertionError, r"\['a', 'b'\]"),
    "filters": (lambda w: w.sync_filters({**w.get_filters(), "b": MeanStdFilter((7,))}), ValueError, "cannot merge"),
    "explore": (lambda w: w.sample(explore="no"), ValueError, "explore='no' is of type str"),
}


def not_finite(worker):
    return [np.full(parameter.shape, np.nan) for parameter in worker.get_policy("b").model.parameters()]


def settable_state(worker):
    """Return the state that methods set."""
    numbers = worker.get_global_vars(), worker.weights_seq_no, worker.policy_version
    return numbers, list(worker.policy_map), worker.policy_mapping_fn, worker.get_policies_to_train()


@pytest.fixture(scope="module")
def refusing():
    with two(policies_to_train=["b"], observation_filter="MeanStdFilter") as worker:
        worker.sample()
        yield worker


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_arguments_are_refused_and_nothing_changes(name, refusing):
    call, error, words = REFUSED[name]
    before, weights, n_seen = settable_state(refusing), refusing.get_weights(), refusing.filters["a"].rs.n
    with pytest.raises(error, match=words):
        call(refusing)
    assert (settable_state(refusing), refusing.filters["a"].rs.n) == (before, n_seen)
    for by_id in (refusing.policy_dict, refusing.filters, refusing.preprocessors):
        assert list(by_id) == ["a", "b"]
    assert alike(refusing.get_weights(), weights)


def test_functions_are_called_with_policies():
    batches = []
    with two(policies_to_train=lambda pid, batch=None: batches.append(batch) or pid == "b") as worker:
        a, b = worker.policy_map.values()
        assert worker.get_policy("b") is b
        assert worker.get_policy() is worker.get_policy("unknown") is None
        assert worker.for_policy(lambda policy, n: (policy, n), "b", n=2) == (b, 2)
        arguments = lambda policy, policy_id, n: (policy, policy_id, n)
        assert worker.foreach_policy(arguments, n=2) == [(a, "a", 2), (b, "b", 2)]
        assert worker.foreach_policy_to_train(arguments, n=2) == [(b, "b", 2)]
        assert (worker.get_policies_to_train("batch"), batches[-1]) == ({"b"}, "batch")


def test_set_global_vars():
    with two(policies_to_train=["b"]) as worker:
        worker.set_global_vars({"timestep": 9, "num_grad_updates_per_policy": {"b": 4}})
        steps = lambda policy, pid: (policy.global_timestep, policy.num_grad_updates)
        assert worker.foreach_policy(steps) == [(0, 0), (9, 4)]
        worker.set_global_vars({"timestep": 11}, policy_ids=["a"])
        assert worker.foreach_policy(steps) == [(11, 0), (9, 4)]
        global_vars = worker.get_global_vars()
        assert global_vars == {"timestep": 11, "num_grad_updates_per_policy": {"b": 4}}
        global_vars["num_grad_updates_per_policy"]["a"] = 1
        assert worker.get_global_vars()["num_grad_updates_per_policy"] == {"b": 4}


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


def test_add_policy():
    with two() as worker:
        state = worker.get_policy("a").get_state()
        how = {"config": {"gamma": 0.5}, "policy_mapping_fn": lambda *_, **__: "new", "policies_to_train": ["new"]}
        policy = worker.add_policy("new", PPOTorchPolicy, policy_state=state, **how)
        assert policy is worker.policy_map["new"]
        assert (policy.config["gamma"], worker.get_policies_to_train()) == (0.5, {"new"})
        assert alike(worker.get_weights("new"), {"new": worker.get_weights()["a"]})
        assert set(worker.sample(force_reset=True).policy_batches) == {"new"}
    with bare() as worker:
        ready = RandomPolicy(*spaces_of().values(), {})
        assert worker.add_policy("ready", policy=ready) is ready


def test_remove_policy():
    with two() as worker:
        worker.remove_policy(policy_id="a", policy_mapping_fn=lambda *_, **__: "b", policies_to_train=["b"])
        for by_id in (worker.policy_map, worker.policy_dict, worker.filters, worker.preprocessors):
            assert list(by_id) == ["b"]
        assert set(worker.sample().policy_batches) == worker.get_policies_to_train() == {"b"}


def test_get_weights():
    with two() as worker:
        weights = worker.get_weights()
        before = pickle.dumps(weights)
        for array in weights["a"].values():
            np.add(array, 1, out=array)
        assert pickle.dumps(worker.get_weights()) == before, "copies"
        assert list(weights) == ["a", "b"]
        assert list(worker.get_weights("b")) == list(worker.get_weights({"b"})) == ["b"]
        with pytest.warns(NoEffectWarning, match="inference_only"):
            assert pickle.dumps(worker.get_weights(inference_only=True)) == before


def test_set_weights():
    with learner() as worker:
        first, second = (shifted(worker.get_weights(), by) for by in (1, 2))
        worker.set_weights(first, {"timestep": 7}, weights_seq_no=5)
        assert (worker.weights_seq_no, worker.policy_version) == (5, 5)
        assert worker.global_vars["timestep"] == 7
        worker.set_weights(second, {"timestep": 8}, weights_seq_no=5)
        assert alike(worker.get_weights(), first), "of the same number"
        assert worker.global_vars["timestep"] == 8
        worker.set_weights(second)
        assert (worker.weights_seq_no, worker.policy_version) == (None, 6)
        array = next(iter(second[DEFAULT].values()))
        np.add(array, 1, out=array)
        assert not alike(worker.get_weights(), second), "copied in"
        with pytest.warns(UserWarning, match="'stranger'"):
            worker.set_weights({"stranger": {}})
        worker.set_weights({"stranger": {}})


def test_get_state_and_set_state():
    with two(observation_filter="MeanStdFilter") as worker, learner(observation_filter="MeanStdFilter") as other:
        worker.set_weights(shifted(worker.get_weights()), {"timestep": 3}, 8)
        worker.sample()
        other.remove_policy()
        state = worker.get_state()
        names = "policy_ids policy_states policy_mapping_fn is_policy_to_train filters global_vars weights_seq_no"
        assert list(state) == [*names.split(), "policy_version"]
        other.set_state(state)
        assert alike(other.get_weights(), worker.get_weights())
        assert (other.weights_seq_no, other.policy_version, other.global_vars["timestep"]) == (8, 8, 3)
        assert other.filters["a"].rs.n == worker.filters["a"].rs.n == 11
        other.set_state({"policy_version": 9})
        assert (other.weights_seq_no, other.policy_version, other.filters["a"].rs.n) == (8, 9, 11), "the rest stays"
        assert set(other.sample().policy_batches) == {"a"}
        before, wrong = other.get_weights(), {**state["policy_states"]["b"], "weights": {"none": np.zeros(1)}}
        states = {"a": worker.get_policy("a").get_state(), "b": wrong, "third": state["policy_states"]["b"]}
        states["a"]["weights"] = shifted(worker.get_weights())["a"]
        with pytest.raises(ValueError, match=r"none is \(1,\), wanted None"):
            other.set_state({**state, "policy_states": states})
        assert alike(other.get_weights(), before)


def test_compute_gradients():
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


def test_apply_gradients():
    with learner() as first, learner() as by_id, learner() as alone:
        batch = first.sample()
        gradients, _ = first.compute_gradients(batch)
        by_id.apply_gradients(gradients)
        alone.apply_gradients([gradient.numpy() for gradient in gradients[DEFAULT]])
        first.learn_on_batch(batch)
        assert alike(by_id.get_weights(), alone.get_weights())
        for name, array in first.get_weights()[DEFAULT].items():
            np.testing.assert_allclose(array, by_id.get_weights()[DEFAULT][name], rtol=1e-6)
        by_id.set_is_policy_to_train([])
        before = by_id.get_weights()
        by_id.apply_gradients(gradients)
        assert alike(by_id.get_weights(), before)


def test_sample_and_learn():
    with learner() as worker:
        info, count = worker.sample_and_learn(10, 3, 4, ["advantages"])
        assert (count, worker.get_policy().num_grad_updates) == (10, 9), "three passes of 4, 4 and 2 rows"
        assert info[DEFAULT]["learner_stats"]["kl"] >= 0
        worker.sample_and_learn(10, None, 0, [])
        assert worker.get_policy().num_grad_updates == 10
        with pytest.raises(AssertionError, match=r"11.* 10 "):
            worker.sample_and_learn(11, None, None, [])
        for epochs, size in ((0, None), (1, -1)):
            with pytest.raises(ValueError, match="sgd"):
                worker.sample_and_learn(10, epochs, size, [])
        assert worker.get_policy().num_grad_updates == 10
