"""The fork server that the process backends of a driver share."""

import os
import sys

import pytest

from swath.workers.process.backend import ProcessBackend
from toys import ask, exists, job, result_of_end


@pytest.fixture
def backends(warm_processes):
    backends = [ProcessBackend() for _ in range(3)]
    yield backends
    for backend in backends:
        backend.close()


def test_backends_share_a_server_and_no_workers(backends):
    workers = [[backend.spawn(job(index=index)) for index in range(2)] for backend in backends]
    servers = [ask(backends[n], worker, "run", os.getppid) for n in range(3) for worker in workers[n]]
    assert len(set(servers)) == 1
    pids = [ask(backends[1], worker, "pid") for worker in workers[1]]
    backends[1].close()
    assert not any(map(exists, pids))
    for n in (0, 2):
        assert [ask(backends[n], worker, "add", 1) for worker in workers[n]] == [1, 1]


def test_a_backend_that_is_closed_at_once_takes_nothing_of_the_next_ones_workers(warm_processes):
    for spawned in range(3):
        given_up = ProcessBackend()
        workers = [given_up.spawn(job()) for _ in range(spawned)]
        given_up.close()
        for worker in workers:
            result_of_end(given_up, worker)
        backend = ProcessBackend()
        assert ask(backend, backend.spawn(job()), "add", 1) == 1
        backend.close()


def test_modules_that_one_backend_asks_for_are_there_for_all(warm_processes, tmp_path, monkeypatch):
    (tmp_path / "asked_for.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    backend = ProcessBackend(preload=["asked_for"])
    worker = backend.spawn(job())
    assert ask(backend, worker, "run", lambda: "asked_for" in sys.modules)
    backend.close()


def test_workers_write_where_their_driver_writes_when_they_begin(backends, capfd):
    worker = backends[0].spawn(job())
    ask(backends[0], worker, "run", print, "to out")
    ask(backends[0], worker, "run", lambda: sys.stderr.write("to err\n"))
    assert capfd.readouterr() == ("to out\n", "to err\n")
    backends[0].call(worker, "fail", SystemExit("last words"))
    result_of_end(backends[0], worker)
    assert capfd.readouterr() == ("", "last words\n")
