"""Functions called in the workers of a set: whom they reach, what comes back, what happens to exceptions."""

import pytest
from set_toys import Broken, toy_set

from swath.errors import Closed
from swath.workers.outcome import Error


@pytest.fixture
def workers():
    with toy_set(n=3, max_requests_in_flight_per_env_runner=2) as made:
        yield made


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
def test_answers_come_from_those_who_are_asked_the_local_worker_first_then_by_id(workers, func, options, answers):
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
    (ValueError, "return_obj_refs=True is not", lambda s: s.foreach_worker(index, return_obj_refs=True)),
    (ValueError, "mark_healthy=True is not", lambda s: s.foreach_worker_async(index, mark_healthy=True)),
    (ValueError, "mark_healthy=True is not", lambda s: s.fetch_ready_async_reqs(mark_healthy=True)),
    (TypeError, "did you mean 'mark_healthy'", lambda s: s.foreach_worker(index, mark_health=True)),
    (NotImplementedError, "a set builds its own", lambda s: s.reset([])),
]


@pytest.mark.parametrize(("error", "words", "call"), REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_called(workers, error, words, call):
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
    one, two, three = workers.foreach_worker(fail_in_2, local_worker=False, on_error="return")
    assert (one, type(two.exception), three) == (1, Broken, 3)
    assert workers.num_remote_worker_restarts() == 0


def test_no_time_sends_only(workers):
    assert workers.foreach_worker(lambda worker: setattr(worker, "told", "sent"), timeout_seconds=0) == []
    assert workers.foreach_worker(lambda worker: worker.told) == ["sent"] * 4


def test_functions_are_called_with_sub_envs_and_where_they_are(workers):
    assert workers.foreach_env(lambda env: env.who) == [[(worker, 0)] for worker in range(4)]
    seen = workers.foreach_env_with_context(lambda env, where: (env.who[0], where.worker_index))
    assert seen == [[(worker, worker)] for worker in range(4)]


def test_asynchronous_answers_say_whose_they_are(workers):
    assert workers.foreach_worker_async(index, tag="mine", healthy_only=False) == 3
    replies = workers.fetch_ready_async_reqs(timeout_seconds=None)
    assert [tuple(reply) for reply in replies] == [(1, 1), (2, 2), (3, 3)]
    assert {(reply.life, reply.version, reply.tag, reply.error) for reply in replies} == {(0, 1, "mine", None)}
    assert fetched(workers) == []


def test_requests_are_limited_per_worker_and_tag_and_none_is_a_tag(workers):
    assert [workers.foreach_worker_async(index) for _ in range(3)] == [3, 3, 0]
    assert [workers.foreach_worker_async(index, tag="x") for _ in range(3)] == [3, 3, 0]
    assert (workers.num_in_flight_async_reqs(), workers.num_in_flight_async_reqs("x")) == (12, 6)
    assert len(fetched(workers, tags="x")) == 6
    assert workers.foreach_worker_async(index, tag="x") == 3
    assert len(fetched(workers, tags=[None])) == 6


def test_lists_are_dealt_in_turn(workers):
    assert workers.foreach_worker_async(add, kwargs=[*TEN_EACH, {"number": 50}]) == 5
    assert sorted(result for _, result in fetched(workers)) == [11, 22, 33, 41, 52]


def test_an_exception_leaves_the_other_answers_for_the_next_fetch_or_is_in_its_reply(workers):
    workers.foreach_worker_async(fail_in_2)
    with pytest.raises(Broken):
        fetched(workers)
    assert fetched(workers) == [(1, 1), (3, 3)]
    workers.foreach_worker_async(fail_in_2)
    replies = workers.fetch_ready_async_reqs(timeout_seconds=None, on_error="return")
    assert [(type(reply.error).__name__, reply.result) for reply in replies] == [
        *(("NoneType", 1), ("Broken", None), ("NoneType", 3))
    ]


def test_the_names_and_answers_of_rllib(workers):
    assert workers.foreach_env_runner(index, local_env_runner=False, remote_worker_ids=[2]) == [2]
    fetch = workers.foreach_env_runner_async_fetch_ready
    assert workers.foreach_env_runner_async(add, "tag", kwargs={"number": 10}, remote_worker_ids=[2, 3]) == 2
    assert fetch(fail_in_2, None, "tag", None, return_actor_ids=True) == [(2, 12), (3, 13)]
    assert fetch(index, None, "tag", None, on_error="return") == [1, 3]


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
