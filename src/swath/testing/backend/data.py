"""Arrays on their way to workers and back: whose they are, and until when."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swath.errors import PayloadLost
from swath.testing.backend.asking import (
    LARGE,
    Place,
    ask,
    job,
    result,
    result_of_end,
)
from swath.testing.toy_worker import Gate
from swath.workers.base import Backend


class Data(Place):
    """Tests of data."""

    def test_what_comes_back_is_the_callers(self, backend: Backend) -> None:
        """Arrays and tensors, large and small, are as they were sent, and writable."""
        worker = backend.spawn(job())
        for size in (3, LARGE):
            array, tensor = np.arange(size), torch.arange(size, dtype=torch.bfloat16)
            came = ask(backend, worker, "echo", {"array": array, "tensor": tensor})
            assert np.array_equal(came["array"], array)
            assert torch.equal(came["tensor"], tensor)
            came["array"][:] = -1
            came["tensor"][:] = -1
            assert array[0] == tensor[0] == 0

    def test_the_worker_keeps_what_it_had(self, backend: Backend) -> None:
        """Writing to an answer does not write to the worker's memory."""
        worker = backend.spawn(job())
        for size in (3, LARGE):
            came = ask(backend, worker, "keep", np.ones(size))
            came[:] = 9
            assert ask(backend, worker, "kept_sum") == size

    def test_arguments_may_change_after_the_call(self, backend: Backend) -> None:
        """The worker gets what they were."""
        worker = backend.spawn(job())
        for size in (3, LARGE):
            array = np.ones(size)
            ticket = backend.call(worker, "keep", array)
            array[:] = 5
            assert result(backend, ticket).sum() == size

    def test_bodies_of_parcels_stay_as_they_were_while_the_worker_goes_on(self, backend: Backend) -> None:
        """Each has its own memory until it is closed, whether those before were small or large."""
        worker = backend.spawn(job())
        for size in (3, LARGE, LARGE, 3):
            parcels = [ask(backend, worker, "parcel", number, size) for number in range(4)]
            bodies = [parcel.open() for parcel in parcels]
            for number, (parcel, body) in enumerate(zip(parcels, bodies, strict=True)):
                assert parcel.head == {"number": number}
                assert set(np.unique(body["array"])) == set(np.unique(body["tensor"])) == {number}
                assert body["array"].shape == (size,)
                assert tuple(body["tensor"].shape) == (size, 1)

    def test_views_of_a_body_are_good_for_as_long_as_somebody_has_them(self, backend: Backend) -> None:
        """Also when their parcel was closed or forgotten."""
        worker = backend.spawn(job())
        views = []
        for number in range(6):
            parcel = ask(backend, worker, "parcel", number, LARGE)
            views.append(parcel.open()["array"][-5:])
            parcel.close()
        assert [view.tolist() for view in views] == [[number] * 5 for number in range(6)]

    def test_a_closed_parcel_is_not_opened(self, backend: Backend) -> None:
        """Closing twice is fine."""
        worker = backend.spawn(job())
        parcel = ask(backend, worker, "parcel", 1, LARGE)
        parcel.close()
        parcel.close()
        with pytest.raises(PayloadLost, match="closed"):
            parcel.open()

    def test_a_parcel_outlives_its_worker(self, backend: Backend) -> None:
        """What has arrived can be opened, unless the place has lost it."""
        worker = backend.spawn(job())
        parcel = ask(backend, worker, "parcel", 4, LARGE)
        backend.kill(worker)
        result_of_end(backend, worker)
        try:
            assert set(np.unique(parcel.open()["array"])) == {4}
        except PayloadLost:
            assert not self.own_process, "a parcel of this machine was lost"

    def test_all_workers_read_what_is_shared(self, backend: Backend) -> None:
        """As it was when it was shared; none can write it."""
        workers = [backend.spawn(job(index=index)) for index in range(3)]
        for size in (3, LARGE):
            array = np.ones(size)
            shared = backend.share({"array": array})
            array[:] = 7
            tickets = [backend.call(worker, "read", shared) for worker in workers]
            assert [result(backend, ticket) for ticket in tickets] == [(size, False)] * 3
            assert shared.open()["array"].sum() == size
            shared.release()
            shared.release()

    def test_a_call_in_flight_reads_what_was_shared_although_it_is_released(self, backend: Backend, gate: Gate) -> None:
        """However many values are shared meanwhile."""
        worker = backend.spawn(job())
        result(backend, worker.ready)
        if self.concurrent:
            backend.call(worker, "wait_at", gate)
            gate.await_arrival()
        tickets = []
        for number in range(5):
            shared = backend.share({"array": np.full(LARGE, number)})
            tickets.append(backend.call(worker, "read", shared))
            shared.release()
        gate.open()
        assert [result(backend, ticket)[0] for ticket in tickets] == [number * LARGE for number in range(5)]

    def test_a_worker_at_work_sees_numbers_that_change(self, backend: Backend) -> None:
        """Its own, of as many as there are workers."""
        if not self.watches:
            with pytest.raises(TypeError, match="memory of this process"):
                backend.watched(2)
            return
        worker = backend.spawn(job())
        watched = backend.watched(2)
        result(backend, worker.ready)
        ticket = backend.call(worker, "until", watched, 1, 5)
        watched.values[1] = 5
        assert result(backend, ticket) == [0, 5]
        watched.release()
