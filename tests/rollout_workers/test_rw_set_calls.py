"""Functions called in the workers of a set: whom they reach, what comes back, what happens to exceptions."""

import pytest
from toy_rollout_worker import Broken, Play, ToySet, config

from swath.errors import Closed
from swath.workers.outcome import Error


@pytest.fixture
def workers():
    with ToySet(env_creator=Play(), config=config(), num_workers=3, backend="inline") as made:
        yield made


def index(worker):
    return worker.worker_index


def pairs(replies):
    return [(worker, result) for worker, result in replies]


def add(worker, number=0):
    return worker.worker_index + number


def fail_in_2(worker):
    if worker.worker_index == 2:
        raise Broken("in worker 2")
    return worker.worker_index


TEN_EACH = [{"number": number} for number in (10, 20, 30, 40)]
REACHED = [
    (index, {}, [0, 1, 2, 3]),
    (index, {"local_worker": False}, [1, 2, 3]),
    (index, {"with_ids": True}, [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ("named", {}, ["hello 0", "hello 1", "hello 2", "hello 3"]),
    (index, {"worker_ids": []}, [0]),
    (index, {"worker_ids": [3, 1]}, [0, 1, 3]),
    (index, {"worker_ids": (2,), "local_worker": False}, [2]),
    (add, {"kwargs": {"number": 10}}, [10, 11, 12, 13]),
    (add, {"kwargs": TEN_EACH}, [10, 21, 32, 43]),
    ([index, "named", add, index], {}, [0, "hello 1", 2, 3]),
    (["named", index], {"local_worker": False, "worker_ids": [3, 1], "with_ids": True}, [(1, 1), (3, "hello 3")]),
]


@pytest.mark.parametrize(("func", "options", "answers"), REACHED)
def test_answers_come_from_those_who_are_asked_the_local_worker_first_then_by_id(workers, func, options, answers):
    assert workers.foreach_worker(func, **options) == answers


@pytest.mark.parametrize("ids", [[4], [0], [1, 9]])
def test_an_unknown_id_is_refused(workers, ids):
    with pytest.raises(ValueError, match="the remote workers are"):
        workers.foreach_worker(index, worker_ids=ids)


@pytest.mark.parametrize("given", [{"func": [index, index]}, {"func": index, "kwargs": [{}, {}]}])
def test_lists_of_another_length_are_refused_before_anything_is_called(workers, given):
    with pytest.raises(ValueError, match="4 workers are addressed"):
        workers.foreach_worker(**given)


CALLS = {
    "foreach_worker": lambda workers, wait: workers.foreach_worker("sample", timeout_seconds=wait),
    "fetch_ready_async_reqs": lambda workers, wait: workers.fetch_ready_async_reqs(timeout_seconds=wait),
    "sample": lambda workers, wait: workers.sample(timeout_seconds=wait),
    "sync_weights": lambda workers, wait: workers.sync_weights(timeout_seconds=wait),
    "sync_filters": lambda workers, wait: workers.sync_filters(timeout_seconds=wait),
    "collect_filters": lambda workers, wait: workers.collect_filters(timeout_seconds=wait),
    "probe_unhealthy_workers": lambda workers, wait: workers.probe_unhealthy_workers(timeout_seconds=wait),
    "stop": lambda workers, wait: workers.stop(timeout_s=wait),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wait", [-1, "2", float("nan"), float("inf"), True])
def test_a_time_that_is_none_is_refused_before_anything_is_done(workers, call, wait):
    with pytest.raises(ValueError, match=r"timeout_s(econds)?=.* must be a finite number of seconds, 0 or more"):
        CALLS[call](workers, wait)
    assert (
        workers.foreach_worker(lambda worker: (worker.sampled, worker.policy_version), local_worker=False)
        == [(0, 1)] * 3
    )


@pytest.mark.parametrize("wrong", ["maybe", "RAISE", 3, False])
def test_a_way_with_errors_that_there_is_not_is_refused(workers, wrong):
    with pytest.raises(ValueError, match=r"on_error=.* must be one of 'raise', 'return'"):
        workers.foreach_worker("sample", on_error=wrong)
    with pytest.raises(ValueError, match=r"on_error=.* must be one of 'raise', 'return'"):
        workers.foreach_worker_async_fetch_ready("sample", on_error=wrong)
    assert workers.num_in_flight_async_reqs() == 0
    assert workers.foreach_worker(lambda worker: worker.sampled) == [0] * 4


def test_an_exception_comes_as_its_own_type_with_all_outcomes_and_the_set_goes_on(workers):
    with pytest.raises(Broken, match="in worker 2") as raised:
        workers.foreach_worker(fail_in_2)
    assert "raised in worker 2 (life 0)" in raised.value.__notes__[0]
    results = dict(raised.value.results)
    assert [results[worker] for worker in (0, 1, 3)] == [0, 1, 3]
    assert isinstance(results[2], Error)
    assert workers.foreach_worker(index) == [0, 1, 2, 3]
    assert workers.num_remote_worker_restarts() == 0


def test_errors_are_entries_if_asked_for(workers):
    one, two, three = workers.foreach_worker(fail_in_2, local_worker=False, on_error="return")
    assert (one, three) == (1, 3)
    assert isinstance(two.exception, Broken)


def test_no_time_sends_only(workers):
    assert workers.foreach_worker(lambda worker: worker.calls.append("sent"), timeout_seconds=0) == []
    assert workers.foreach_worker(lambda worker: worker.calls[-1]) == ["sent"] * 4


REFUSED = (
    lambda workers, **given: workers.foreach_worker(index, **given),
    lambda workers, **given: workers.foreach_worker_async(index, **given),
    lambda workers, **given: workers.fetch_ready_async_reqs(**given),
)


@pytest.mark.parametrize("call", REFUSED)
def test_what_rllib_takes_and_a_set_does_not_is_refused_by_name(workers, call):
    for name in ("return_obj_refs", "mark_healthy"):
        with pytest.raises(ValueError, match=f"{name}=True is not served: "):
            call(workers, **{name: True})
        call(workers, **{name: False})
    with pytest.raises(TypeError, match="did you mean 'mark_healthy'"):
        call(workers, mark_health=True)
    with pytest.raises(NotImplementedError, match="a set builds its own"):
        workers.reset([])


def test_functions_are_called_with_sub_envs_and_where_they_are(workers):
    assert workers.foreach_env(lambda env: env.number) == [[0, 1]] * 4
    seen = workers.foreach_env_with_context(lambda env, where: (env.number, where))
    assert seen == [[(0, worker), (1, worker)] for worker in range(4)]


def test_fetching_and_sending_takes_and_gives_what_rllibs_does(workers):
    assert workers.foreach_env_runner(index, local_env_runner=False, remote_worker_ids=[2]) == [2]
    fetch = workers.foreach_env_runner_async_fetch_ready
    assert fetch(add, {"number": 10}, "tag", None, remote_worker_ids=[2, 3]) == []
    assert fetch(add, {"number": 20}, "tag", None, return_actor_ids=True) == [(2, 12), (3, 13)]
    assert fetch(fail_in_2, None, "tag", None) == [21, 22, 23]
    with pytest.raises(Broken, match="in worker 2"):
        fetch(index, None, "tag", None)
    assert fetch(index, None, "tag", None, on_error="return") == [1, 3]


def test_asynchronous_answers_say_whose_they_are(workers):
    assert workers.foreach_worker_async(index, tag="mine") == 3
    replies = workers.fetch_ready_async_reqs(timeout_seconds=None)
    assert pairs(replies) == [(1, 1), (2, 2), (3, 3)]
    assert {(reply.life, reply.version, reply.tag, reply.error) for reply in replies} == {(0, 1, "mine", None)}
    assert [(reply[0], reply[1]) for reply in replies] == [tuple(reply) for reply in replies]
    assert workers.fetch_ready_async_reqs(timeout_seconds=None) == []


def test_requests_are_limited_per_worker_and_tag_and_none_is_a_tag():
    own = config(max_requests_in_flight_per_env_runner=2)
    with ToySet(env_creator=Play(), config=own, num_workers=2, backend="inline") as workers:
        assert [workers.foreach_worker_async(index) for _ in range(3)] == [2, 2, 0]
        assert [workers.foreach_worker_async(index, tag="x") for _ in range(3)] == [2, 2, 0]
        assert (workers.num_in_flight_async_reqs(), workers.num_in_flight_async_reqs("x")) == (8, 4)
        assert len(workers.fetch_ready_async_reqs(tags="x", timeout_seconds=None)) == 4
        assert workers.foreach_worker_async(index, tag="x") == 2
        assert len(workers.fetch_ready_async_reqs(tags=[None], timeout_seconds=None)) == 4


def test_lists_are_dealt_in_turn():
    own = config(max_requests_in_flight_per_env_runner=3)
    with ToySet(env_creator=Play(), config=own, num_workers=2, backend="inline") as workers:
        jobs = [{"number": number} for number in (10, 20, 30, 40, 50)]
        assert workers.foreach_worker_async(add, kwargs=jobs) == 5
        replies = workers.fetch_ready_async_reqs(timeout_seconds=None)
        assert sorted(result for _, result in replies) == [11, 22, 31, 42, 51]
        assert workers.foreach_worker_async([index]) == 1
        with pytest.raises(ValueError, match="different lengths"):
            workers.foreach_worker_async([index, index], kwargs=[{}])


def test_an_exception_leaves_the_other_answers_for_the_next_fetch(workers):
    workers.foreach_worker_async(fail_in_2)
    with pytest.raises(Broken):
        workers.fetch_ready_async_reqs(timeout_seconds=None)
    assert pairs(workers.fetch_ready_async_reqs(timeout_seconds=None)) == [(1, 1), (3, 3)]


def test_after_the_end_everything_is_closed(workers):
    workers.stop()
    workers.stop()
    calls = (
        lambda: workers.foreach_worker(index),
        lambda: workers.foreach_worker_async(index),
        workers.fetch_ready_async_reqs,
        workers.sample,
        workers.sync_weights,
        workers.sync_filters,
        workers.healthy_worker_ids,
    )
    for call in calls:
        with pytest.raises(Closed, match="build another WorkerSet"):
            call()
    assert repr(workers) == "<ToySet: stopped>"
