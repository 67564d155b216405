"""A sink that fails or hangs is told of, and whoever feeds it goes on."""

import threading

import pytest

from swath.report import detached_sink
from swath.report.detached_sink import DetachedSink


class Listed:
    """Keeps what it gets; `gate` holds it up, `fails` says which row it refuses."""

    def __init__(self, fails=None, at_close=False):
        self.rows, self.closed, self.fails, self.at_close = [], 0, fails, at_close
        self.gate = threading.Event()
        self.gate.set()
        self.ended = threading.Event()

    def log(self, frames, metrics):
        self.gate.wait()
        if frames == self.fails:
            raise ConnectionError("nobody answers")
        self.rows.append((frames, dict(metrics)))

    def close(self):
        self.closed += 1
        self.ended.set()
        if self.at_close:
            raise OSError("the door is stuck")


@pytest.fixture
def told():
    return []


def test_every_row_arrives_as_it_was_when_it_was_logged(told):
    sink, metrics = Listed(), {"a": 1.0}
    detached = DetachedSink(sink, told.append)
    detached.log(10, metrics)
    metrics["a"] = 2.0
    detached.log(20, metrics)
    detached.close()
    detached.close()
    assert sink.rows == [(10, {"a": 1.0}), (20, {"a": 2.0})]
    assert (sink.closed, told) == (1, [])


def test_a_row_that_is_refused_is_told_once_and_closes_the_sink(told):
    sink = Listed(fails=20)
    detached = DetachedSink(sink, told.append)
    for frames in (10, 20):
        detached.log(frames, {})
    assert sink.ended.wait(60)
    for frames in (30, 40):
        detached.log(frames, {})
    detached.close()
    assert [str(error) for error in told] == ["nobody answers"]
    assert (sink.rows, sink.closed) == ([(10, {})], 1)


@pytest.mark.parametrize(("sink", "said"), [(Listed(fails=10), "nobody answers"), (Listed(at_close=True), "the door")])
def test_what_fails_in_the_last_row_or_while_closing_is_told_too(sink, said, told):
    detached = DetachedSink(sink, told.append)
    detached.log(10, {})
    detached.close()
    (error,) = told
    assert said in str(error)


def test_of_two_failures_the_first_is_told(told):
    detached = DetachedSink(Listed(fails=10, at_close=True), told.append)
    detached.log(10, {})
    detached.close()
    assert [str(error) for error in told] == ["nobody answers"]


def test_a_sink_that_hangs_holds_nobody_up(told, monkeypatch):
    monkeypatch.setattr(detached_sink, "MOST_WAITING", 3)
    sink = Listed()
    sink.gate.clear()
    detached = DetachedSink(sink, told.append)
    for frames in range(9):
        detached.log(frames, {})
    detached.close()
    (error,) = told
    assert "does not keep up: 3 rows wait" in str(error)
    sink.gate.set()
    assert sink.ended.wait(60)


def test_closing_waits_for_a_while_only(told):
    sink = Listed()
    sink.gate.clear()
    detached = DetachedSink(sink, told.append, goodbye_s=0.01)
    detached.log(10, {})
    detached.close()
    (error,) = told
    assert "not done after 0.01 s" in str(error)
    sink.gate.set()
    assert sink.ended.wait(60)
