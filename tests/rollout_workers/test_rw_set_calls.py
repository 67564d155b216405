"""Functions called in the workers of a set: which workers they reach, their answers and exceptions.

And changes of policies, in all workers at once and in later ones.
"""

import threading

import pytest
from rw_toys import REFUSED_POLICIES
from set_toys import Broken, Play, ToyPolicy, toy_set, weighing

from swath.errors import Closed
from swath.workers.outcome import Error
from toys import DEADLINE_S


@pytest.fixture
def workers():
    with toy_set(n=3, max_requests_in_flight_per_env_runner=2) as worker_set:
        yield worker_set


def index(worker):
    return worker.worker_index


def add(worker, number=0):
    return worker.worker_index + number


def fail_in_2(worker):
    if worker.worker_index == 2:
        raise Broken("in worker 2")
    return worker.worker_index


def fetched(workers, **options):
    return [tuple(reply) for reply in workers.fetch_ready_async_reqs(timeout_seconds=None, **options)]


TEN_EACH = [{"number": number} for number in (10, 20, 30, 40)]
REACHED = [
    (index, {}, [0, 1, 2, 3]),
    (index, {"local_worker": False}, [1, 2, 3]),
    (index, {"with_ids": True}, [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ("ping", {}, ["pong"] * 4),
    (index, {"worker_ids": []}, [0]),
    (index, {"worker_ids": [3, 1]}, [0, 1, 3]),
    (add, {"kwargs": {"number": 10}}, [10, 11, 12, 13]),
    (add, {"kwargs": TEN_EACH}, [10, 21, 32, 43]),
    (["ping", index], {"local_worker": False, "worker_ids": [3, 1], "with_ids": True}, [(1, 1), (3, "pong")]),
]


@pytest.mark.parametrize(("func", "options", "answers"), REACHED)
def test_answers_come_from_the_addressed_workers_the_local_one_first_then_by_id(workers, func, options, answers):
    assert workers.foreach_worker(func, **options) == answers


def untouched(worker):
    return worker.counters["env_steps_sampled"], worker.policy_version


REFUSED = [
    (ValueError, "the remote workers are", lambda s: s.foreach_worker(index, worker_ids=[1, 9])),
    (ValueError, "4 workers are addressed", lambda s: s.foreach_worker([index, index])),
    (ValueError, "4 workers are addressed", lambda s: s.foreach_worker(index, kwargs=[{}, {}])),
    (ValueError, "different lengths", lambda s: s.foreach_worker_async([index, index], kwargs=[{}])),
    (ValueError, r"on_error='maybe' must be one of", lambda s: s.foreach_worker("sample", on_error="maybe")),
    (ValueError, r"on_error=3 must be one of", lambda s: s.fetch_ready_async_reqs(on_error=3)),
    (ValueError, "timeout_seconds=-1 must be a finite number", lambda s: s.sample(timeout_seconds=-1)),
    (ValueError, "timeout_s='2' must be a finite number", lambda s: s.stop(timeout_s="2")),
    (ValueError, "mark_healthy=True is not", lambda s: s.foreach_worker_async(index, mark_healthy=True)),
    (TypeError, "did you mean 'mark_healthy'", lambda s: s.foreach_worker(index, mark_health=True)),
]


@pytest.mark.parametrize(("error", "words", "call"), REFUSED)
def test_invalid_arguments_are_refused_before_any_worker_is_called(workers, error, words, call):
    with pytest.raises(error, match=words):
        call(workers)
    assert workers.foreach_worker(untouched, local_worker=False, mark_healthy=False) == [(0, 1)] * 3
    assert workers.num_in_flight_async_reqs() == 0


def test_an_exception_comes_as_its_own_type_with_all_outcomes_and_the_set_goes_on(workers):
    with pytest.raises(Broken, match="in worker 2") as raised:
        workers.foreach_worker(fail_in_2)
    assert "raised in worker 2 (life 0)" in raised.value.__notes__[0]
    results = dict(raised.value.results)
    assert ([results[worker] for worker in (0, 1, 3)], type(results[2])) == ([0, 1, 3], Error)
    first, second, third = workers.foreach_worker(fail_in_2, local_worker=False, on_error="return")
    assert (first, type(second.exception), third) == (1, Broken, 3)
    assert workers.num_remote_worker_restarts() == 0


def test_no_time_sends_only_and_functions_are_called_with_sub_envs_and_where_they_are(workers):
    assert workers.foreach_worker(lambda worker: setattr(worker, "told", "sent"), timeout_seconds=0) == []
    assert workers.foreach_worker(lambda worker: worker.told) == ["sent"] * 4
    assert workers.foreach_env(lambda env: env.who) == [[(worker, 0)] for worker in range(4)]
    results = workers.foreach_env_with_context(lambda env, where: (env.who[0], where.worker_index))
    assert results == [[(worker, worker)] for worker in range(4)]


def test_asynchronous_answers_name_their_worker_and_lists_are_assigned_in_turn(workers):
    assert workers.foreach_worker_async(index, tag="mine", healthy_only=False) == 3
    replies = workers.fetch_ready_async_reqs(timeout_seconds=None)
    assert [tuple(reply) for reply in replies] == [(1, 1), (2, 2), (3, 3)]
    assert {(reply.life, reply.version, reply.tag, reply.error) for reply in replies} == {(0, 1, "mine", None)}
    assert fetched(workers) == []
    assert workers.foreach_worker_async(add, kwargs=[*TEN_EACH, {"number": 50}]) == 5
    assert sorted(result for _, result in fetched(workers)) == [11, 22, 33, 41, 52]


def test_requests_are_limited_per_worker_and_tag_and_none_is_a_tag(workers):
    assert [workers.foreach_worker_async(index) for _ in range(3)] == [3, 3, 0]
    assert [workers.foreach_worker_async(index, tag="x") for _ in range(3)] == [3, 3, 0]
    assert (workers.num_in_flight_async_reqs(), workers.num_in_flight_async_reqs("x")) == (12, 6)
    assert len(fetched(workers, tags="x")) == 6
    assert workers.foreach_worker_async(index, tag="x") == 3
    assert len(fetched(workers, tags=[None])) == 6


def test_an_exception_leaves_the_other_answers_for_the_next_fetch_or_is_in_its_reply(workers):
    workers.foreach_worker_async(fail_in_2)
    with pytest.raises(Broken):
        fetched(workers)
    assert fetched(workers) == [(1, 1), (3, 3)]
    workers.foreach_worker_async(fail_in_2)
    replies = workers.fetch_ready_async_reqs(timeout_seconds=None, on_error="return")
    assert [reply.result for reply in replies] == [1, None, 3]
    assert [type(reply.error) for reply in replies] == [type(None), Broken, type(None)]


def test_the_names_and_answers_of_rllib(workers):
    assert workers.foreach_env_runner(index, local_env_runner=False, remote_worker_ids=[2]) == [2]
    fetch = workers.foreach_env_runner_async_fetch_ready
    assert workers.foreach_env_runner_async(add, "tag", kwargs={"number": 10}, remote_worker_ids=[2, 3]) == 2
    assert fetch(fail_in_2, None, "tag", None, return_actor_ids=True) == [(2, 12), (3, 13)]
    assert fetch(index, None, "tag", None, on_error="return") == [1, 3]


def test_functions_get_the_id_and_the_worker(workers):
    def both(worker_id, worker):
        return worker_id, worker.worker_index

    assert workers.foreach_worker_with_id(both) == [(number, number) for number in range(4)]
    assert workers.foreach_worker_with_id(both, local_worker=False, worker_ids=[3]) == [(3, 3)]
    assert workers.foreach_env_runner_with_id(both, local_env_runner=False, remote_worker_ids=[2]) == [(2, 2)]


def test_after_the_end_everything_is_closed(workers):
    workers.stop()
    workers.stop()
    for call in (
        lambda: workers.foreach_worker(index),
        lambda: workers.foreach_worker_async(index),
        workers.fetch_ready_async_reqs,
        workers.sample,
        workers.sync_weights,
        workers.healthy_worker_ids,
    ):
        with pytest.raises(Closed, match="build another WorkerSet"):
            call()
    assert repr(workers) == "<WorkerSet: stopped>"


@pytest.fixture(params=[True, False], ids=["with a local worker", "without"])
def either(request):
    with toy_set(options={"local_worker": request.param}) as workers:
        yield workers


def policy_facts(workers):
    """Ids of policies, who acts, who learns: the same in all workers."""
    first, *others = workers.foreach_worker(policy_facts_of)
    assert all(other == first for other in others)
    return first


def policy_facts_of(worker):
    mapping = worker.policy_mapping_fn(0, None)
    return sorted(worker.policy_map), mapping, sorted(worker.get_policies_to_train())


def weights_of_a(workers):
    return set(workers.foreach_worker(lambda worker: float(worker.policy_map["a"].w[0])))


def to_a(agent_id, episode, **_):
    return "a"


BOTH = ["a", "default_policy"]
NOTHING_SAID = (["default_policy"], "default_policy", ["default_policy"])


def test_a_policy_is_added_removed_and_added_again_in_all_workers_and_in_later_ones(either):
    either.add_policy("a", ToyPolicy, policy_mapping_fn=to_a, policies_to_train=["a"])
    either.add_workers(1)
    assert policy_facts(either) == (BOTH, "a", ["a"])
    assert (either.is_policy_to_train("a"), either.is_policy_to_train("default_policy")) == (True, False)
    either.remove_policy(policy_id="default_policy", policy_mapping_fn=lambda *_, **__: "b")
    either.remove_policy(policy_id="a")
    policy = weighing(3.0)
    either.add_policy("a", policy=policy)
    either.add_workers(1)
    assert (policy_facts(either), weights_of_a(either)) == ((["a"], "b", ["a"]), {3.0})
    if either.local_worker() is not None:
        assert either.local_worker().policy_map["a"] is policy


def test_mapping_and_training_are_set_in_all_workers_or_if_unpicklable_in_none(fork_server):
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
            assert policy_facts(workers) == NOTHING_SAID
        workers.set_policy_mapping_fn(to_a)
        workers.set_is_policy_to_train([])
        workers.set_policy_mapping_fn(None)
        assert policy_facts(workers)[1:] == ("a", [])


class FailsInWorker2(ToyPolicy):
    """Cannot be built in worker 2."""

    def __init__(self, observation_space, action_space, config):
        if config["worker_index"] == 2:
            raise Broken("a policy raised")
        super().__init__(observation_space, action_space, config)


FAILING = lambda s: s.add_policy("new", FailsInWorker2, policy_mapping_fn=to_a, policies_to_train=["a"])
REFUSED_IN_ALL = {**REFUSED_POLICIES, "one worker fails": (FAILING, Broken, "a policy raised")}


@pytest.mark.parametrize("name", REFUSED_IN_ALL)
def test_a_policy_that_is_refused_is_in_no_worker_and_all_go_on(either, name):
    call, error, words = REFUSED_IN_ALL[name]
    either.add_policy("a", ToyPolicy)
    before = policy_facts(either)
    with pytest.raises(error, match=words):
        call(either)
    assert policy_facts(either) == before
    either.sample()
    either.add_workers(1)
    assert policy_facts(either) == before
    either.add_policy("new", ToyPolicy)
    assert policy_facts(either)[0] == [*BOTH, "new"]


def test_a_worker_that_comes_back_has_all_changes_and_no_weights_of_a_removed_policy(fork_server):
    with toy_set(Play({(1, 0, 1): "kill"}), 1, "process") as workers:
        workers.add_policy("a", policy=weighing(3.0))
        workers.sync_weights(timeout_seconds=DEADLINE_S)
        workers.remove_policy(policy_id="a")
        workers.add_policy("a", policy=weighing(4.0), policy_mapping_fn=to_a, policies_to_train=["a"])
        workers.sync_weights("default_policy", global_vars={"timestep": 9})
        workers.sample()
        assert workers.foreach_worker(lambda worker: worker.recreated_worker, local_worker=False) == [True]
        assert (policy_facts(workers), weights_of_a(workers)) == ((BOTH, "a", ["a"]), {4.0})
        assert workers.foreach_worker(lambda worker: worker.get_global_vars()["timestep"]) == [9] * 2
