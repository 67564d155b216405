"""The contract of backends, run for each. A new backend is a class at the end of this file."""

import os
import signal
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch

import ray_cluster
from swath.errors import Closed, PayloadLost, RemoteFailure, SwathError, WorkerLost
from swath.workers.base import Job
from swath.workers.local import InlineBackend, ThreadBackend
from swath.workers.process.backend import ProcessBackend
from swath.workers.tickets import Name
from toys import (
    DEADLINE_S,
    LARGE,
    Odd,
    ToyWorker,
    ask,
    becomes,
    descriptors,
    error_of,
    exists,
    job,
    result,
    result_of_end,
    visiting,
)


class BackendContract:
    """Order, exceptions, data, ends, waiting, processes. To override: the fixture `make_backend`.

    Attributes:
        concurrent: whether workers run while no thread waits.
        own_process: whether each worker has a process on this machine.
        watches: whether workers see memory of this process.
        sees_idle_deaths: whether `Handle.ended` is settled without a call.
        tells_exit_codes: whether `WorkerLost.exit` is a process's exit code, not words.
        lingers_s: for how many seconds a process, and what is open to it, may stay when its tickets are settled.
    """

    concurrent = True
    own_process = True
    watches = True
    sees_idle_deaths = True
    tells_exit_codes = True
    lingers_s = 0.0

    @pytest.fixture
    def backend(self, make_backend, request):
        with visiting(make_backend, request.node) as visit:
            yield visit

    @pytest.fixture
    def workers(self, backend):
        return [backend.spawn(job(index=index)) for index in range(2)]

    @pytest.fixture
    def worker(self, backend):
        worker = backend.spawn(job())
        result(backend, worker.ready)
        return worker

    @pytest.fixture
    def need_processes(self):
        if not self.own_process:
            pytest.skip("these workers have no processes")

    def hold(self, backend, worker, gate):
        """Let a worker wait at the gate, and return the call."""
        call = backend.call(worker, "wait_at", gate)
        if self.concurrent:
            gate.await_arrival()
        return call

    # Calls

    def test_calls_are_carried_out_in_the_order_in_which_they_were_sent(self, backend, workers):
        tickets = [[backend.call(worker, "add", 1) for _ in range(50)] for worker in workers]
        for calls in tickets:
            assert [result(backend, ticket) for ticket in calls] == list(range(1, 51))

    def test_calls_from_many_threads_are_each_answered_once(self, backend, worker):
        def send_many(start):
            tickets = [backend.call(worker, "echo", start + offset) for offset in range(100)]
            return [result(backend, ticket) for ticket in tickets]

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(send_many, range(0, 400, 100)))
        assert answers == [list(range(start, start + 100)) for start in range(0, 400, 100)]

    def test_a_worker_is_built_before_its_calls_from_code_of_any_origin_in_the_surroundings_of_its_job(self, backend):
        offset = 7

        class Local(ToyWorker):
            def shifted(self, number):
                return number + offset

        class Mine(gym.Env):
            observation_space = action_space = gym.spaces.Discrete(2)

        def initializer():
            os.environ["SWATH_TOLD_BEFORE"] = "3"

        def build():
            return Local(int(os.environ.pop("SWATH_TOLD_BEFORE")))

        lock = threading.Lock()
        gym.register("Mine-v0", Mine, max_episode_steps=7)
        gym.register("Locked-v0", lambda: lock and Mine())
        try:
            # Not of a first life, since tests share these on Ray.
            worker = backend.spawn(Job(build, Name(0, 1), threads=2, initializer=initializer))
            assert ask(backend, worker, "add", 5) == 8
            assert worker.ready.done
            assert result(backend, worker.ready) is None
            assert ask(backend, worker, "shifted", 1) == 8
            assert ask(backend, worker, "run", lambda number: number * offset, 2) == 14
            assert ask(backend, worker, "run", lambda: gym.make("Mine-v0").spec.max_episode_steps) == 7
            if self.own_process:
                assert ask(backend, worker, "threads") == 2
                error = error_of(backend, backend.call(worker, "run", lambda: gym.make("Locked-v0")))
                assert isinstance(error, TypeError)
                assert "'Locked-v0'" in str(error)
                assert "the variable 'lock' of" in str(error)
        finally:
            del gym.registry["Mine-v0"], gym.registry["Locked-v0"]

    @pytest.mark.parametrize(
        ("method", "args", "error", "words"),
        [
            ("fail", (KeyError("gone"),), KeyError, "gone"),
            ("fail_oddly", (), (RemoteFailure, Odd), "rather odd"),
            ("missing", (), AttributeError, "missing"),
            ("lock", (), TypeError, "lock"),
        ],
    )
    def test_an_exception_is_an_answer_that_says_where_it_was_raised_and_the_worker_lives_on(
        self, backend, worker, method, args, error, words
    ):
        with pytest.raises(error, match=words) as caught:
            ask(backend, worker, method, *args)
        if isinstance(caught.value, RemoteFailure):
            assert caught.value.type_name.endswith("Odd")
            assert "in fail_oddly" in caught.value.traceback
        elif method.startswith("fail"):
            assert f"in {method}" in "".join(traceback.format_exception(caught.value))
        assert ask(backend, worker, "add", 1) == 1

    def test_arguments_that_cannot_travel_raise_at_once(self, backend, worker):
        with pytest.raises(TypeError, match="lock"):
            backend.call(worker, "echo", threading.Lock())
        assert ask(backend, worker, "add", 1) == 1

    @pytest.mark.parametrize("part", ["build", "initializer"])
    def test_an_exception_of_the_build_is_the_answer_to_ready(self, backend, part):
        def broken():
            raise ZeroDivisionError("not today")

        worker = backend.spawn(job(broken) if part == "build" else job(initializer=broken))
        call = backend.call(worker, "add", 1)
        with pytest.raises(ZeroDivisionError, match="not today"):
            result(backend, worker.ready)
        with pytest.raises(SwathError, match="worker 0"):
            result(backend, call)

    # Data

    @pytest.mark.parametrize("size", [3, LARGE])
    def test_arrays_are_copied_on_both_ways(self, backend, worker, size):
        array, tensor = np.ones(size), torch.arange(size, dtype=torch.bfloat16)
        call = backend.call(worker, "keep", array)
        array[:] = 5
        received = result(backend, call)
        assert received.sum() == size
        received[:] = 9
        assert ask(backend, worker, "kept_sum") == size
        received = ask(backend, worker, "echo", {"array": array, "tensor": tensor})
        assert np.array_equal(received["array"], array)
        assert torch.equal(received["tensor"], tensor)
        received["array"][:] = -1
        received["tensor"][:] = -1
        assert (array[0], tensor[0]) == (5, 0)

    def test_bodies_of_parcels_stay_unchanged_while_the_worker_goes_on(self, backend, worker):
        for size in (3, LARGE, LARGE, 3):
            parcels = [ask(backend, worker, "parcel", number, size) for number in range(4)]
            bodies = [parcel.open() for parcel in parcels]
            for number, (parcel, body) in enumerate(zip(parcels, bodies, strict=True)):
                assert parcel.head == {"number": number}
                assert set(np.unique(body["array"])) == set(np.unique(body["tensor"])) == {number}
                assert (body["array"].shape, tuple(body["tensor"].shape)) == ((size,), (size, 1))

    def test_views_of_a_body_are_good_when_their_parcel_is_closed_which_is_not_opened_again(self, backend, worker):
        views = []
        for number in range(6):
            parcel = ask(backend, worker, "parcel", number, LARGE)
            views.append(parcel.open()["array"][-5:])
            parcel.close()
            parcel.close()
        assert [view.tolist() for view in views] == [[number] * 5 for number in range(6)]
        with pytest.raises(PayloadLost, match="closed"):
            parcel.open()

    @pytest.mark.parametrize("size", [3, LARGE])
    def test_all_workers_read_a_shared_value_and_none_can_write_it(self, backend, workers, size):
        array = np.ones(size)
        shared = backend.share({"array": array})
        array[:] = 7
        tickets = [backend.call(worker, "read", shared) for worker in workers]
        assert [result(backend, ticket) for ticket in tickets] == [(size, False)] * 2
        assert shared.open()["array"].sum() == size

    def test_a_call_in_flight_reads_a_shared_value_that_the_caller_has_dropped(self, backend, worker, gate):
        if self.concurrent:
            self.hold(backend, worker, gate)
        tickets = []
        for number in range(5):
            shared = backend.share({"array": np.full(LARGE, number)})
            tickets.append(backend.call(worker, "read", shared))
            del shared
        gate.open()
        assert [result(backend, ticket)[0] for ticket in tickets] == [number * LARGE for number in range(5)]

    def test_a_worker_at_work_sees_numbers_that_change(self, backend, worker):
        if not self.watches:
            assert backend.shared_counters(2) is None
            return
        numbers = backend.shared_counters(2)
        ticket = backend.call(worker, "until", numbers, 1, 5)
        numbers.open()[1] = 5
        assert result(backend, ticket) == [0, 5]

    # Ends

    def test_a_killed_worker_answers_all_that_is_open_and_follows_and_only_the_place_can_lose_its_parcels(
        self, backend, gate
    ):
        killed, other = backend.spawn(job(index=0, life=2)), backend.spawn(job(index=1))
        parcel = ask(backend, killed, "parcel", 4, LARGE)
        calls = [self.hold(backend, killed, gate), backend.call(killed, "add", 1)]
        backend.kill(killed)
        backend.kill(killed)
        for ticket in (*calls, backend.call(killed, "add", 1), killed.ended):
            lost = error_of(backend, ticket)
            assert isinstance(lost, WorkerLost)
            assert (lost.worker, lost.life) == (0, 2)
            assert "worker 0 (life 2)" in str(lost)
        assert ask(backend, other, "add", 1) == 1
        try:
            assert set(np.unique(parcel.open()["array"])) == {4}
        except PayloadLost:
            assert not self.own_process, "a parcel of this machine was lost"

    def test_a_worker_that_is_killed_while_it_starts_never_gets_ready(self, backend, gate):
        worker = backend.spawn(job(partial(ToyWorker, gate=gate)))
        if self.concurrent:
            gate.await_arrival()
        backend.kill(worker)
        assert isinstance(error_of(backend, worker.ready), WorkerLost)
        assert isinstance(result_of_end(backend, worker), WorkerLost)

    def test_a_worker_that_exits_is_lost_with_all_that_follows_and_says_its_code(self, backend, worker):
        calls = [backend.call(worker, "fail", SystemExit(4)), backend.call(worker, "add", 1)]
        lost = [error_of(backend, ticket) for ticket in calls]
        assert [type(error) for error in lost] == [WorkerLost, WorkerLost]
        assert lost[0].exit == 4 if self.own_process and self.tells_exit_codes else lost[0].exit

    def test_a_closed_backend_answers_and_stays_closed(self, make_backend, gate):
        backend = make_backend()
        worker = backend.spawn(job())
        result(backend, worker.ready)
        call = self.hold(backend, worker, gate)
        backend.close()
        backend.close()
        assert isinstance(error_of(backend, call), WorkerLost)
        assert isinstance(error_of(backend, backend.call(worker, "add", 1)), WorkerLost)
        with pytest.raises(Closed):
            backend.spawn(job())

    def test_no_thread_descriptor_or_process_is_left_after_close(self, make_backend):
        use_and_close(make_backend)  # whatever is made only once
        threads, fds = set(threading.enumerate()), descriptors()
        pid = use_and_close(make_backend)
        assert set(threading.enumerate()) <= threads
        assert becomes(lambda: descriptors() <= fds, self.lingers_s)
        assert not (self.own_process and exists(pid, self.lingers_s))

    # Waiting

    def test_waiting_ends_at_its_deadline(self, backend, gate):
        assert backend.wait([], 0.0) == []
        if not self.concurrent:
            return
        slow, quick = backend.spawn(job()), backend.spawn(job(index=1))
        late = self.hold(backend, slow, gate)
        assert backend.wait([late], 0.01) == []
        done = backend.call(quick, "add", 1)
        assert backend.wait([late, done], DEADLINE_S) == [done]
        gate.open()
        assert result(backend, late) is None

    def test_waiting_can_be_interrupted(self, backend):
        interrupt, checked = threading.Event(), threading.Event()

        def interrupted():
            checked.set()
            return interrupt.is_set()

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(backend.wait, [], DEADLINE_S, interrupted)
            assert checked.wait(DEADLINE_S)
            interrupt.set()
            backend.wake()
            assert waiting.result(DEADLINE_S) == []

    # Processes

    @pytest.mark.usefixtures("need_processes")
    @pytest.mark.parametrize(("signum", "busy"), [(signal.SIGKILL, False), (signal.SIGTERM, True)])
    def test_a_process_that_is_ended_from_outside_is_lost(self, backend, worker, gate, signum, busy):
        pid = ask(backend, worker, "pid")
        if busy:
            self.hold(backend, worker, gate)
        os.kill(pid, signum)
        seen_without_call = self.sees_idle_deaths and signum == signal.SIGKILL
        ticket = worker.ended if seen_without_call else backend.call(worker, "pid")
        lost = error_of(backend, ticket)
        assert isinstance(lost, WorkerLost)
        assert not self.tells_exit_codes or (lost.exit == -signum and signal.Signals(signum).name in str(lost))
        assert not exists(pid, self.lingers_s)

    @pytest.mark.usefixtures("need_processes")
    def test_a_process_that_is_stopped_can_be_killed(self, backend, worker):
        pid = ask(backend, worker, "pid")
        os.kill(pid, signal.SIGSTOP)
        call = backend.call(worker, "add", 1)
        backend.kill(worker)
        assert isinstance(error_of(backend, call), WorkerLost)
        assert not exists(pid, self.lingers_s)

    @pytest.mark.usefixtures("need_processes")
    def test_a_worker_is_built_and_called_in_the_main_thread_of_its_process_and_may_set_handlers(self, backend):
        worker = backend.spawn(job(MadeInThread))
        assert ask(backend, worker, "threads") == (True, True)
        assert ask(backend, worker, "run", signal.signal, signal.SIGUSR1, signal.SIG_IGN) == signal.SIG_DFL

    @pytest.mark.usefixtures("need_processes")
    def test_interrupts_of_the_keyboard_are_not_for_workers(self, backend, worker):
        os.kill(ask(backend, worker, "pid"), signal.SIGINT)
        assert ask(backend, worker, "add", 1) == 1

    @pytest.mark.usefixtures("need_processes")
    def test_processes_draw_different_numbers_from_every_generator(self, backend, workers):
        draws = [ask(backend, worker, "draw") for worker in workers]
        assert [len(set(numbers)) for numbers in zip(*draws, strict=True)] == [2, 2, 2]


def in_main_thread():
    return threading.current_thread() is threading.main_thread()


class MadeInThread(ToyWorker):
    def __init__(self):
        super().__init__()
        self.built = in_main_thread()

    def threads(self):
        """Return whether it was built, and is called, in the main thread."""
        return self.built, in_main_thread()


def use_and_close(make_backend):
    """Use a backend and close it; return the pid of its worker."""
    backend = make_backend()
    worker, shared = backend.spawn(job()), backend.share({"array": np.ones(LARGE)})
    pid = ask(backend, worker, "pid")
    ask(backend, worker, "read", shared)
    ask(backend, worker, "parcel", 1, LARGE).open()
    backend.call(worker, "echo", np.ones(LARGE))
    backend.close()
    return pid


class TestInline(BackendContract):
    concurrent = False
    own_process = False

    @pytest.fixture
    def make_backend(self):
        return InlineBackend


class TestThreads(BackendContract):
    own_process = False

    @pytest.fixture
    def make_backend(self):
        return ThreadBackend


class TestProcesses(BackendContract):
    @pytest.fixture
    def make_backend(self, fork_server):
        return ProcessBackend


class TestRay(BackendContract):
    watches = False
    sees_idle_deaths = False
    tells_exit_codes = False
    lingers_s = DEADLINE_S  # Ray says so first; a process that is stopped is killed after 5 s

    @pytest.fixture
    def make_backend(self):
        return ray_cluster.backend

    @pytest.fixture
    def backend(self):
        with ray_cluster.visiting() as visit:
            yield visit
