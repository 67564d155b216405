"""Sinks that write files, a group of sinks, and one that is fed from a thread."""

import threading
import time

import pytest

from swath.report import sinks
from swath.report.sinks import CsvSink, DetachedSink, SinkGroup, TensorBoardSink


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.csv"


def lines(path):
    return path.read_text().splitlines()


def test_a_column_that_comes_later_widens_the_one_header_and_every_row_is_on_disk_at_once(path):
    sink = CsvSink(path)
    sink.log(10, {"a": 1.5, "b": 2})
    assert lines(path) == ["frames,a,b", "10,1.5,2"]
    sink.log(20, {"a": 2.0, "eval": 0.5})
    sink.log(30, {"eval": 0.75})
    sink.close()
    sink.close()
    assert lines(path) == ["frames,a,b,eval", "10,1.5,2,", "20,2.0,,0.5", "30,,,0.75"]


def test_a_resumed_file_loses_the_rows_beyond_the_resumed_frame_and_a_torn_last_line(path):
    CsvSink(path, resume_at=20).close()  # a new file
    path.write_text("frames,a\n10,1.0\n20,2.0\n30,3.0\n40,4.")
    sink = CsvSink(path, resume_at=20)
    assert lines(path) == ["frames,a", "10,1.0", "20,2.0"]
    sink.log(30, {"a": 33.0})
    sink.close()
    assert lines(path) == ["frames,a", "10,1.0", "20,2.0", "30,33.0"]


def test_files_of_others_are_left_alone(path):
    path.write_text("step,a\n1,2\n")
    with pytest.raises(FileExistsError, match=r"metrics\.csv holds the metrics of another run; resume it"):
        CsvSink(path)
    with pytest.raises(ValueError, match="first column must be 'frames'"):
        CsvSink(path, resume_at=5)


def scalars(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_has_scalars_at_their_frames_and_hides_what_lies_beyond_the_resumed_one(tmp_path, monkeypatch):
    first = TensorBoardSink(tmp_path)
    for frames in (10, 20, 30):
        first.log(frames, {"train/return": 1.0})
    first.close()
    later = time.time() + 1.0
    monkeypatch.setattr(time, "time", lambda: later)  # files are read in the order of their names, which say the second
    second = TensorBoardSink(tmp_path, resume_at=20)
    second.log(30, {"train/return": 2.0})
    second.close()
    assert scalars(tmp_path, "train/return") == [(10, 1.0), (20, 1.0), (30, 2.0)]


class Listed:
    """Keeps what it gets; `gate` holds it up, `fails` says which row it refuses."""

    def __init__(self, fails=None, at_close=False):
        self.rows, self.closed, self.fails, self.at_close = [], 0, fails, at_close
        self.gate, self.ended = threading.Event(), threading.Event()
        self.gate.set()

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


def test_a_group_hands_everything_on_and_closes_all_even_when_one_fails():
    first, second = Listed(at_close=True), Listed(at_close=True)
    group = SinkGroup([first, second])
    group.log(5, {"a": 1.0})
    with pytest.raises(OSError, match="the door is stuck"):
        group.close()
    assert first.rows == second.rows == [(5, {"a": 1.0})]
    assert (first.closed, second.closed) == (1, 1)


@pytest.fixture
def said():
    return []


def test_a_detached_sink_gets_every_row_as_it_was_when_it_was_logged(said):
    sink, metrics = Listed(), {"a": 1.0}
    detached = DetachedSink(sink, said.append)
    detached.log(10, metrics)
    metrics["a"] = 2.0
    detached.log(20, metrics)
    detached.close()
    detached.close()
    assert sink.rows == [(10, {"a": 1.0}), (20, {"a": 2.0})]
    assert (sink.closed, said) == (1, [])


def test_a_row_that_is_refused_is_said_once_and_closes_the_sink(said):
    sink = Listed(fails=20)
    detached = DetachedSink(sink, said.append)
    for frames in (10, 20):
        detached.log(frames, {})
    assert sink.ended.wait(60)
    detached.log(30, {})
    detached.close()
    assert [str(error) for error in said] == ["nobody answers"]
    assert (sink.rows, sink.closed) == ([(10, {})], 1)


@pytest.mark.parametrize(
    ("rows", "why"), [(9, "it does not keep up: 3 rows wait for it"), (1, "it is not done after 0.01 s; what it")]
)
def test_a_sink_that_hangs_holds_nobody_up(rows, why, said, monkeypatch):
    monkeypatch.setattr(sinks, "MOST_WAITING", 3)
    sink = Listed()
    sink.gate.clear()
    detached = DetachedSink(sink, said.append, goodbye_s=0.01)
    for frames in range(rows):
        detached.log(frames, {})
    detached.close()
    (error,) = said
    assert str(error).startswith(why)
    sink.gate.set()
    assert sink.ended.wait(60)
