"""Calls to workers: their order, what travels, what is raised."""

from __future__ import annotations

import os
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from swath.errors import RemoteFailure, SwathError
from swath.testing.backend.asking import (
    Place,
    ask,
    job,
    result,
)
from swath.testing.toy_worker import Odd, ToyWorker
from swath.workers.base import Backend


class Calls(Place):
    """Tests of calls."""

    def test_a_worker_is_ready_when_it_is_built(self, backend: Backend) -> None:
        """`ready` has no value, and calls may follow."""
        worker = backend.spawn(job())
        assert result(backend, worker.ready) is None
        assert ask(backend, worker, "add", 1) == 1

    def test_calls_may_be_sent_before_the_worker_is_ready(self, backend: Backend) -> None:
        """They wait for it."""
        worker = backend.spawn(job(partial(ToyWorker, 5)))
        assert ask(backend, worker, "add", 1) == 6
        assert worker.ready.done

    def test_calls_are_carried_out_in_the_order_in_which_they_were_sent(self, backend: Backend) -> None:
        """For each worker."""
        workers = [backend.spawn(job(index=index)) for index in range(3)]
        tickets = [[backend.call(worker, "add", 1) for _ in range(50)] for worker in workers]
        for calls in tickets:
            assert [result(backend, ticket) for ticket in calls] == list(range(1, 51))

    def test_calls_from_many_threads_are_each_answered_once(self, backend: Backend) -> None:
        """None is lost, none mixed up with another."""
        worker = backend.spawn(job())

        def send_many(start: int) -> list[int]:
            tickets = [backend.call(worker, "echo", start + offset) for offset in range(100)]
            return [result(backend, ticket) for ticket in tickets]

        with ThreadPoolExecutor(4) as pool:
            for start, answers in zip(range(0, 400, 100), pool.map(send_many, range(0, 400, 100)), strict=True):
                assert answers == list(range(start, start + 100))

    def test_functions_and_classes_of_any_origin_travel(self, backend: Backend) -> None:
        """Closures, lambdas, classes that are local to a function."""
        offset = 7

        class Local(ToyWorker):
            def shifted(self, number: int) -> int:
                return number + offset

        worker = backend.spawn(job(lambda: Local()))  # noqa: PLW0108  it is the lambda that travels
        assert ask(backend, worker, "shifted", 1) == 8
        assert ask(backend, worker, "run", lambda number: number * offset, 2) == 14

    def test_before_runs_before_the_worker_is_built(self, backend: Backend) -> None:
        """In the worker."""

        def before() -> None:
            os.environ["SWATH_TOLD_BEFORE"] = "3"

        def build() -> ToyWorker:
            return ToyWorker(int(os.environ.pop("SWATH_TOLD_BEFORE")))

        worker = backend.spawn(job(build, before=before))
        assert ask(backend, worker, "add", 0) == 3

    def test_an_exception_is_an_answer_of_its_own_type(self, backend: Backend) -> None:
        """It says where it was raised, and the worker lives on."""
        worker = backend.spawn(job(partial(ToyWorker, 3)))
        ticket = backend.call(worker, "fail", KeyError("gone"))
        with pytest.raises(KeyError, match="gone") as caught:
            result(backend, ticket)
        assert "in fail" in "".join(traceback.format_exception(caught.value))
        assert ask(backend, worker, "add", 1) == 4

    def test_an_exception_that_cannot_be_rebuilt_says_what_it_was(self, backend: Backend) -> None:
        """It is itself where it does not have to be rebuilt, a `RemoteFailure` elsewhere."""
        worker = backend.spawn(job())
        with pytest.raises((RemoteFailure, Odd), match="rather odd") as caught:
            ask(backend, worker, "fail_oddly")
        if isinstance(caught.value, RemoteFailure):
            assert caught.value.type_name.endswith("Odd")
            assert "in fail_oddly" in caught.value.traceback
        assert ask(backend, worker, "add", 1) == 1

    def test_a_missing_method_is_an_answer(self, backend: Backend) -> None:
        """An `AttributeError`."""
        worker = backend.spawn(job())
        with pytest.raises(AttributeError, match="no_such"):
            ask(backend, worker, "no_such")

    def test_what_cannot_travel_is_an_answer(self, backend: Backend) -> None:
        """A `TypeError`; the worker lives on."""
        worker = backend.spawn(job())
        with pytest.raises(TypeError, match="lock"):
            ask(backend, worker, "lock")
        assert ask(backend, worker, "add", 1) == 1

    def test_arguments_that_cannot_travel_raise_at_once(self, backend: Backend) -> None:
        """The caller has the mistake, and the worker goes on."""
        worker = backend.spawn(job())
        with pytest.raises(TypeError, match="lock"):
            backend.call(worker, "echo", threading.Lock())
        assert ask(backend, worker, "add", 1) == 1

    @pytest.mark.parametrize("part", ["build", "before"])
    def test_what_building_raises_is_the_answer_to_ready(self, backend: Backend, part: str) -> None:
        """As itself; calls to such a worker are answered with an error too."""

        def broken() -> None:
            raise ZeroDivisionError("not today")

        worker = backend.spawn(job(broken) if part == "build" else job(before=broken))
        call = backend.call(worker, "add", 1)
        with pytest.raises(ZeroDivisionError, match="not today"):
            result(backend, worker.ready)
        with pytest.raises(SwathError, match="worker 0"):
            result(backend, call)
