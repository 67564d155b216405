"""Services collected as garbage are closed, whichever thread collects it."""

import subprocess
import sys
import threading

from swath.workers.garbage import GarbageWatch
from toys import DEADLINE_S


class Owner:
    pass


def test_collected_owners_are_closed_in_one_other_thread_and_errors_are_logged(caplog):
    closed, threads, owner = threading.Semaphore(0), [], Owner()

    def close():
        threads.append(threading.current_thread())
        closed.release()

    failing = GarbageWatch(owner, lambda: 1 / 0)
    for _ in range(2):
        GarbageWatch(owner, close)
    assert not threads
    del owner
    for _ in range(2):
        assert closed.acquire(timeout=DEADLINE_S)
    assert len({threading.current_thread(), *threads}) == 2
    failing.end()
    assert "ZeroDivisionError" in caplog.text


def test_garbage_that_is_collected_while_a_random_state_is_read_stops_no_thread():
    """Torch holds a lock then; a thread that waits for it would hold Python's."""
    script = """
import gc, sys, threading
from swath.rollout.seeding import preserve_generators

def let_others_run(phase, info):
    for _ in range(1000):
        pass

def read():
    for _ in range(50):
        with preserve_generators():
            pass

gc.callbacks.append(let_others_run)
gc.set_threshold(1)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=read) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("read")
"""
    assert _run(script) == "read\n"


def _run(script):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    ).stdout
