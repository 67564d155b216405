"""What is said of policies in a set: in all workers at once, and in those that come later."""

import threading

import pytest
from set_toys import Broken, Play, ToyPolicy, toy_set, weighing


@pytest.fixture(params=[True, False], ids=["with a local worker", "without"])
def workers(request):
    with toy_set(options={"local_worker": request.param}) as made:
        yield made


def told(workers):
    """Ids of policies, who acts, who learns: the same in all workers."""
    first, *others = workers.foreach_worker(said)
    assert all(other == first for other in others)
    return first


def said(worker):
    mapping = worker.policy_mapping_fn(0, None)
    return sorted(worker.policy_map), mapping, sorted(worker.get_policies_to_train())


def weights_of_a(workers):
    return set(workers.foreach_worker(lambda worker: float(worker.policy_map["a"].w[0])))


def to_a(agent_id, episode, **_):
    return "a"


BOTH = ["a", "default_policy"]
NOTHING_SAID = (["default_policy"], "default_policy", ["default_policy"])


def test_a_policy_is_added_in_all_workers_and_in_later_ones(workers):
    workers.add_policy("a", ToyPolicy, policy_mapping_fn=to_a, policies_to_train=["a"])
    workers.add_workers(1)
    assert told(workers) == (BOTH, "a", ["a"])
    assert (workers.is_policy_to_train("a"), workers.is_policy_to_train("default_policy")) == (True, False)


def test_a_policy_is_removed_and_may_be_added_anew_and_an_object_is_copied_to_the_others(workers):
    workers.add_policy("a", ToyPolicy)
    workers.remove_policy(policy_id="default_policy", policy_mapping_fn=to_a)
    workers.remove_policy(policy_id="a")
    policy = weighing(3.0)
    workers.add_policy("a", policy=policy)
    workers.add_workers(1)
    assert (told(workers), weights_of_a(workers)) == ((["a"], "a", ["a"]), {3.0})
    if workers.local_worker() is not None:
        assert workers.local_worker().policy_map["a"] is policy


def test_mapping_and_training_are_set_in_all_workers_and_what_cannot_be_sent_in_none(warm_processes):
    def mapping(agent_id, episode, lock=threading.Lock(), **_):  # noqa: B008
        return "a"

    with toy_set(backend="process") as workers:
        for refused in (
            lambda: workers.set_policy_mapping_fn(mapping),
            lambda: workers.add_policy("a", ToyPolicy, policy_mapping_fn=mapping),
            lambda: workers.remove_policy(policy_mapping_fn=mapping),
        ):
            with pytest.raises(TypeError, match="pickle"):
                refused()
            assert told(workers) == NOTHING_SAID
        workers.set_policy_mapping_fn(to_a)
        workers.set_is_policy_to_train([])
        workers.set_policy_mapping_fn(None)
        assert told(workers)[1:] == ("a", [])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: s.add_policy("default_policy", ToyPolicy), KeyError, "is taken"),
        (lambda s: s.add_policy("a"), ValueError, "exactly one"),
        (lambda s: s.add_policy("a", ToyPolicy, weighing(1.0)), ValueError, "exactly one"),
        (lambda s: s.add_policy("a", ToyPolicy, module_spec=3), ValueError, "module_spec"),
        (lambda s: s.add_policy("a", ToyPolicy, policy_mapping_fn="a"), ValueError, "cannot be called"),
        (lambda s: s.remove_policy(policy_id="a"), ValueError, "is unknown"),
        (lambda s: s.set_policy_mapping_fn(3), ValueError, "cannot be called"),
        (lambda s: s.set_is_policy_to_train("a"), TypeError, "is_policy_to_train"),
        (lambda s: s.set_is_policy_to_train(None), TypeError, "None"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(workers, call, error, words):
    with pytest.raises(error, match=words):
        call(workers)
    workers.add_workers(1)
    assert told(workers) == NOTHING_SAID


class Refusing(ToyPolicy):
    def __init__(self, observation_space, action_space, config):
        if config["worker_index"] == 2:
            raise Broken("a policy raised")
        super().__init__(observation_space, action_space, config)


def test_a_policy_that_one_worker_cannot_build_is_in_none_and_all_go_on(workers):
    with pytest.raises(Broken, match="a policy raised"):
        workers.add_policy("a", Refusing, policy_mapping_fn=to_a, policies_to_train=["a"])
    assert told(workers) == NOTHING_SAID
    workers.sample()
    workers.add_workers(1)
    workers.add_policy("a", ToyPolicy)
    assert told(workers)[0] == BOTH


def test_a_worker_that_comes_back_knows_what_was_said_and_nothing_of_a_policy_that_had_the_id_before(warm_processes):
    with toy_set(Play({(1, 0, 1): "kill"}), 1, "process") as workers:
        workers.add_policy("a", policy=weighing(3.0))
        workers.sync_weights(timeout_seconds=60.0)
        workers.remove_policy(policy_id="a")
        workers.add_policy("a", policy=weighing(4.0), policy_mapping_fn=to_a, policies_to_train=["a"])
        workers.sync_weights("default_policy", global_vars={"timestep": 9})
        workers.sample()
        assert workers.foreach_worker(lambda worker: worker.recreated_worker, local_worker=False) == [True]
        assert (told(workers), weights_of_a(workers)) == ((BOTH, "a", ["a"]), {4.0})
        assert workers.foreach_worker(lambda worker: worker.get_global_vars()["timestep"]) == [9] * 2
