"""What a worker is given and cannot use: refused with words on what to give, before anything has changed."""

import copy

import numpy as np
import pytest
from checklist_toys import DEFAULT, alike, learner

from swath.rollout_workers import MeanStdFilter, PPOTorchPolicy

WRONG = [
    (TypeError, "policy_cls=5 must be a class", lambda w: w.add_policy("a", 5)),
    (TypeError, "an object of one", lambda w: w.add_policy("a", policy=PPOTorchPolicy)),
    (TypeError, "dict; give a SampleBatch", lambda w: w.learn_on_batch({})),
    (TypeError, "list; give a SampleBatch", lambda w: w.compute_gradients([])),
    (ValueError, "explore='no' is of type str; it must be True or False", lambda w: w.sample(explore="no")),
]


@pytest.fixture(scope="module")
def worker():
    with learner() as made:
        made.sample()
        yield made


def state_of(worker):
    numbers = worker.get_global_vars(), worker.weights_seq_no, worker.policy_version, worker.policy_mapping_fn
    return numbers, list(worker.policy_map), list(worker.filters), worker.is_policy_to_train


@pytest.mark.parametrize(("error", "words", "call"), WRONG)
def test_what_is_of_the_wrong_kind_is_refused_before_anything_changes(worker, error, words, call):
    before, weights = state_of(worker), worker.get_weights()
    with pytest.raises(error, match=words):
        call(worker)
    assert state_of(worker) == before
    assert alike(worker.get_weights(), weights)
    assert worker.sample().count == worker.total_rollout_fragment_length


def test_gradients_that_are_not_finite_are_refused_and_the_next_update_is_as_if_they_had_not_been(worker):
    batch, start = worker.sample(), worker.get_state()
    gradients, _ = worker.compute_gradients(batch, single_agent=True)
    version = worker.policy_version
    for bad in (np.nan, np.inf):
        with pytest.raises(FloatingPointError, match="not finite"):
            worker.apply_gradients([*gradients[:-1], gradients[-1] * bad])
    assert worker.policy_version == version
    worker.apply_gradients(gradients)
    after = worker.get_weights()
    worker.set_state(copy.deepcopy(start))
    worker.apply_gradients(each for each in gradients)
    assert alike(worker.get_weights(), after)


def test_a_state_that_does_not_fit_in_one_part_changes_no_other():
    with learner() as own, learner(seed=4) as other:
        own.add_policy("second", PPOTorchPolicy)
        state, before = own.get_state(), own.get_weights()
        states = state["policy_states"]
        states[DEFAULT]["weights"] = other.get_weights(DEFAULT)[DEFAULT]
        states["third"] = copy.deepcopy(states["second"])
        states["second"] = {**states.pop("second"), "weights": {"none": np.zeros(1)}}
        with pytest.raises(ValueError, match=r"none is \(1,\), wanted None"):
            own.set_state(state)
        assert list(own.policy_map) == [DEFAULT, "second"]
        assert alike(own.get_weights(), before)


def test_filters_of_another_shape_are_refused_and_none_is_changed():
    with learner(observation_filter="MeanStdFilter") as worker:
        worker.sample()
        worker.add_policy("other", PPOTorchPolicy)
        new, before = worker.get_filters(), worker.filters[DEFAULT].rs.n
        new[DEFAULT].rs.push(np.zeros(4))
        with pytest.raises(ValueError, match="cannot merge statistics"):
            worker.sync_filters({**new, "other": MeanStdFilter((7,))})
        assert worker.filters[DEFAULT].rs.n == before
