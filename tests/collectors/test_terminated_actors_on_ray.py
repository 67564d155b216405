"""SIGTERM to an actor, as a cluster sends it that takes a machine away: it ends at once and is replaced."""

import os
import signal
from functools import partial

import pytest
from fleet_toys import LONG, Held, InThread, Level, drawn_until, fleet, made_by

from swath.testing import CountingEnv, check_lives
from toys import Gate


@pytest.fixture
def gate(tmp_path):
    gate = Gate.at(tmp_path / "gate")
    yield gate
    gate.open()


def noted(path, env):
    """The env, whose process is written down."""
    path.write_text(str(os.getpid()))
    return env()


@pytest.fixture
def sources(tmp_path, gate):
    """Of two workers; the second waits at the gate in its third step."""
    envs = [partial(CountingEnv, 0, LONG), partial(Held, gate, 3, 1)]
    return [partial(noted, tmp_path / str(number), env) for number, env in enumerate(envs)]


def terminate(path, worker):
    os.kill(int((path / str(worker)).read_text()), signal.SIGTERM)


def test_a_busy_actor_that_is_terminated_is_replaced(sources, tmp_path, gate):
    options = {"envs_per_worker": 1, "frames_per_batch": 5}
    with fleet("async", sources, Level(), backend="ray", **options) as collector:
        drawing = InThread(drawn_until, collector, lambda batch: 1 in made_by(batch))
        gate.await_arrival()
        terminate(tmp_path, 1)
        gate.open()
        batches = drawing.join().value
        stats = collector.stats("both")
    assert all(batch.numel() == options["frames_per_batch"] for batch in batches)
    check_lives(batches, LONG)
    assert (stats["restarts"], stats["worker_0/life"], stats["worker_1/life"]) == (1, 0, 1)
