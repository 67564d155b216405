"""Drivers of worker processes in separate programs: how they end, and that nothing outlives them."""

import os
import select
import signal
import subprocess
import sys
from itertools import takewhile

import pytest

from toys import DEADLINE_S

BEGIN = """
import os, select, signal, sys
from toys import ToyWorker, ask, exists, job, result_of_end
from swath.workers.process.backend import ProcessBackend

def say(*words):
    print(*words, flush=True)

def begin():
    backend = ProcessBackend(preload=["toys"])
    workers = [backend.spawn(job(index=index)) for index in range(2)]
    pids = [ask(backend, worker, "pid") for worker in workers]
    return backend, workers, [ask(backend, workers[0], "run", os.getppid), *pids]

backend, workers, pids = begin()
"""

PARTS = {
    "fork": """
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
""",
    "server": """
os.kill(pids[0], signal.SIGKILL)
for worker in workers:
    say(result_of_end(backend, worker))
say(*(exists(pid, 60) for pid in pids))
again = backend.spawn(job(life=1))
say(ask(backend, again, "run", os.getppid) not in pids)
""",
    "backends": """
other = ProcessBackend(preload=["toys"])
worker = other.spawn(job())
pids = [ask(backend, again, "pid"), ask(other, worker, "pid"), ask(other, worker, "run", os.getppid)]
assert pids[2] == ask(backend, again, "run", os.getppid)
fds = [os.pidfd_open(pid) for pid in pids]
backend.close()
say(ask(other, worker, "add", 1))
other.close()
say(len(select.select(fds, [], [], 0)[0]))
""",
}
BUSY = """
say("part busy")
say(*pids)
backend.call(workers[0], "run", signal.pause)
ask(backend, workers[1], "add", 1)
say("part over")
sys.stdin.read()
"""
KILLED = """
if os.fork() == 0:
    signal.pause()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    """Return a function that starts a driver, and returns it with the lines that each of its parts prints."""
    started = []

    def start(script, **options):
        path = tmp_path_factory.mktemp("drivers") / "driver.py"
        path.write_text(BEGIN + script)
        surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        driver = subprocess.Popen([sys.executable, path], text=True, env=surroundings, **pipes, **options)
        started.append(driver)
        parts = "".join(takewhile("part over\n".__ne__, driver.stdout)).split("part ")[1:]
        return driver, {name: lines for name, *lines in map(str.splitlines, parts)}

    yield start
    for driver in started:
        driver.kill()
        with driver:
            pass


@pytest.fixture(scope="module")
def driven(drive):
    """Return a driver with workers at work, which ends when its input does, and the lines of its parts."""
    script = "\n".join(f"say('part {name}')\n{part}" for name, part in PARTS.items())
    return drive(script + "\nbackend, workers, pids = begin()\n" + BUSY)


@pytest.mark.parametrize("killed", [False, True])
def test_everything_ends_with_a_driver(driven, drive, killed):
    """Let one driver end without closing, and kill another of which a fork lives on."""
    driver, parts = drive(BUSY + KILLED, start_new_session=True) if killed else driven
    fds = [os.pidfd_open(int(pid)) for pid in parts["busy"][0].split()]
    assert len(fds) == 3
    try:
        driver.stdin.close()
        for fd in fds:
            with os.fdopen(fd) as ended:
                assert select.select([ended], [], [], DEADLINE_S)[0], "a process outlives its driver"
        assert driver.wait(DEADLINE_S) == (-signal.SIGKILL if killed else 0)
        assert killed or driver.stderr.read() == ""
    finally:
        if killed:
            os.killpg(driver.pid, signal.SIGKILL)


def test_a_program_needs_no_main_guard_is_not_run_again_and_its_forks_leave_its_workers_alone(driven):
    own_class, refusal, answer = driven[1]["fork"]
    assert own_class == "('__main__', 12) True"
    assert "a fork; make others here" in refusal
    assert answer == "1"


def test_a_dead_fork_server_takes_its_workers_along_and_the_next_spawn_begins_another(driven):
    lost = "worker {} (life 0) was lost with the process that starts workers, which was killed by SIGKILL"
    assert driven[1]["server"] == [lost.format(0), lost.format(1), "False False False", "True"]


def test_the_fork_server_ends_with_the_last_backend(driven):
    assert driven[1]["backends"] == ["1", "3"]
