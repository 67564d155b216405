"""The environment of worker processes: their caller's directory, paths, variables and streams; one fork server."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from swath.workers.base import Job
from swath.workers.process.backend import ProcessBackend
from swath.workers.tickets import Name
from toys import ToyWorker, ask, job, result_of_end


@pytest.fixture
def backend(fork_server):
    backend = ProcessBackend()
    yield backend
    backend.close()


def run_in_new_worker(backend, function, **options):
    """Return the function's result in a new worker."""
    worker = backend.spawn(Job(ToyWorker, Name(0, 0), **options))
    try:
        return ask(backend, worker, "run", function)
    finally:
        backend.kill(worker)


def test_directory_paths_variables_and_arguments_are_the_callers_of_now(backend, monkeypatch, tmp_path):
    assert run_in_new_worker(backend, lambda: os.environ.get("SWATH_TOLD")) is None  # the fork server is up
    (tmp_path / "only_here.py").write_text("answer = 42")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SWATH_TOLD", "yes")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(sys, "argv", ["program", "--flag"])

    def look():
        import only_here

        return os.environ["SWATH_TOLD"], "HOME" in os.environ, Path.cwd(), sys.argv, only_here.answer

    assert run_in_new_worker(backend, look) == ("yes", False, tmp_path, ["program", "--flag"], 42)


def test_objects_of_the_callers_manager_can_be_used(backend):
    with multiprocessing.get_context("spawn").Manager() as manager:
        shared_list = manager.list()
        run_in_new_worker(backend, lambda: shared_list.append("from the worker"))
        assert list(shared_list) == ["from the worker"]


def test_a_module_that_cannot_be_preloaded_fails_only_where_it_is_needed(tmp_path, monkeypatch):
    (tmp_path / "broken_early.py").write_text("raise OSError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)

    def use():
        import broken_early  # noqa: F401

    backend = ProcessBackend(preload=["broken_early", "torch"])
    worker = backend.spawn(job())
    with pytest.raises(OSError, match="no licence"):
        ask(backend, worker, "run", use)
    backend.close()


def test_workers_write_where_their_driver_writes_when_they_begin(backend, capfd):
    worker = backend.spawn(job())
    ask(backend, worker, "run", print, "to out")
    ask(backend, worker, "run", lambda: sys.stderr.write("to err\n"))
    assert capfd.readouterr() == ("to out\n", "to err\n")
    backend.call(worker, "fail", SystemExit("last words"))
    result_of_end(backend, worker)
    assert capfd.readouterr() == ("", "last words\n")
