"""Drivers of worker processes in separate programs: how they end, and that nothing outlives them."""

import os
import select
import signal
import subprocess
import sys

import pytest

from toys import DEADLINE_S

BEGIN = """
import os, signal, sys
from functools import partial
from toys import ask, job, result, result_of_end
from toys import ToyWorker
from swath.workers.process.backend import ProcessBackend

def say(*words):
    print(*words, flush=True)

backend = ProcessBackend(preload=["torch"])
workers = [backend.spawn(job(index=index)) for index in range(2)]
pids = [ask(backend, worker, "pid") for worker in workers]
say(ask(backend, workers[0], "run", os.getppid), *pids)
"""
BUSY = "backend.call(workers[0], 'run', signal.pause); ask(backend, workers[1], 'add', 1); say('busy')\n"


@pytest.fixture
def drive(tmp_path):
    """Return a function that starts a driver; its output can be read line by line."""
    started = []

    def start(script, **options):
        path = tmp_path / "driver.py"
        path.write_text(BEGIN + script)
        driver = subprocess.Popen(
            [sys.executable, path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            **options,
        )
        started.append(driver)
        return driver

    yield start
    for driver in started:
        driver.kill()
        driver.communicate()


def processes_of(driver):
    """Return descriptors that are readable when the fork server and the workers have ended."""
    return [os.pidfd_open(int(pid)) for pid in driver.stdout.readline().split()]


def assert_all_end(fds):
    for fd in fds:
        with os.fdopen(fd) as ended:
            assert select.select([ended], [], [], DEADLINE_S)[0], "a process outlives its driver"


def test_everything_ends_with_a_driver_that_ends_without_closing(drive):
    driver = drive(BUSY)
    fds = processes_of(driver)
    assert_all_end(fds)
    _, errors = driver.communicate(timeout=DEADLINE_S)
    assert errors == ""


def test_a_program_needs_no_main_guard_is_not_run_again_and_its_forks_leave_its_workers_alone(drive):
    driver = drive("""
class Mine(ToyWorker):
    def whose(self):
        return __name__, offset

offset = 12
worker = backend.spawn(job(Mine))
say(ask(backend, worker, "whose"), type(ask(backend, worker, "run", lambda: Mine())) is Mine)
pid = os.fork()
if pid == 0:
    try:
        backend.call(workers[0], "add", 1)
    except RuntimeError as error:
        say(error)
    backend.close()
    sys.exit(0)
os.waitpid(pid, 0)
say(ask(backend, workers[0], "add", 1))
""")
    output, errors = driver.communicate(timeout=DEADLINE_S)
    assert errors == ""
    _, own_class, refusal, answer = output.splitlines()
    assert own_class == "('__main__', 12) True"
    assert "a fork; make others here" in refusal
    assert answer == "1"


def test_everything_ends_with_a_driver_that_is_killed_although_a_fork_of_it_lives_on(drive):
    driver = drive(
        BUSY
        + """
if os.fork() == 0:
    signal.pause()
os.kill(os.getpid(), signal.SIGKILL)
""",
        start_new_session=True,
    )
    fds = processes_of(driver)
    try:
        assert_all_end(fds)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)


def test_a_dead_fork_server_takes_its_workers_along_and_the_next_spawn_begins_another(drive):
    driver = drive("""
server = ask(backend, workers[0], "run", os.getppid)
os.kill(server, signal.SIGKILL)
for worker in workers:
    say(result_of_end(backend, worker))
again = backend.spawn(job(life=1))
say(ask(backend, again, "run", os.getppid) != server)
""")
    fds = processes_of(driver)
    assert_all_end(fds)
    output, errors = driver.communicate(timeout=DEADLINE_S)
    assert errors == ""
    lost = "worker {} (life 0) was lost with the process that starts workers, which was killed by SIGKILL"
    assert output.splitlines() == [lost.format(0), lost.format(1), "True"]


def test_the_fork_server_ends_with_the_last_backend(drive):
    driver = drive(
        """
other = ProcessBackend(preload=["torch"])
worker = other.spawn(job())
assert ask(other, worker, "run", os.getppid) == ask(backend, workers[0], "run", os.getppid)
backend.close()
say(ask(other, worker, "add", 1))
other.close()
say("closed")
sys.stdin.read()
""",
        stdin=subprocess.PIPE,
    )
    fds = processes_of(driver)
    assert driver.stdout.readline() == "1\n"
    assert driver.stdout.readline() == "closed\n"
    for fd in fds:
        with os.fdopen(fd) as ended:
            assert select.select([ended], [], [], 0)[0], "a process outlives its backend"
