import errno
import math
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.report import csv_sink
from swath.report.csv_sink import CsvSink, format_value, read_rows
from swath.report.sink import SinkGroup


@contextmanager
def no_room(path):
    raise OSError(errno.ENOSPC, "No space left on device", str(path))
    yield


def lines(path):
    return path.read_text().splitlines()


def test_every_row_is_on_disk_before_the_sink_is_closed(tmp_path):
    sink = CsvSink(tmp_path / "metrics.csv")
    sink.log(10, {"a": 1.5, "b": 2})
    assert lines(tmp_path / "metrics.csv") == ["frames,a,b", "10,1.5,2"]
    sink.close()
    sink.close()


def test_a_column_that_comes_later_widens_the_one_header_and_leaves_earlier_cells_empty(tmp_path):
    sink = CsvSink(tmp_path / "metrics.csv")
    sink.log(10, {"a": 1.0})
    sink.log(20, {"a": 2.0, "eval": 0.5})
    sink.log(30, {"eval": 0.75})
    sink.close()
    assert lines(tmp_path / "metrics.csv") == ["frames,a,eval", "10,1.0,", "20,2.0,0.5", "30,,0.75"]


def test_a_column_that_finds_no_room_leaves_the_file_as_it_was_and_later_rows_a_place(tmp_path, monkeypatch):
    sink = CsvSink(tmp_path / "metrics.csv")
    sink.log(10, {"a": 1.0})
    with monkeypatch.context() as full:
        full.setattr(csv_sink, "replacing", no_room)
        with pytest.raises(OSError, match="No space left"):
            sink.log(20, {"a": 2.0, "eval": 0.5})
        sink.log(30, {"a": 3.0})
        assert lines(tmp_path / "metrics.csv") == ["frames,a", "10,1.0", "30,3.0"]
    sink.log(40, {"eval": 0.75})
    sink.close()
    assert lines(tmp_path / "metrics.csv") == ["frames,a,eval", "10,1.0,", "30,3.0,", "40,,0.75"]


def test_a_resumed_file_loses_the_rows_beyond_the_resumed_frame_and_a_torn_last_line(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("frames,a\n10,1.0\n20,2.0\n30,3.0\n40,4.")
    sink = CsvSink(path, resume_at=20)
    assert lines(path) == ["frames,a", "10,1.0", "20,2.0"]
    sink.log(30, {"a": 33.0})
    sink.close()
    assert lines(path) == ["frames,a", "10,1.0", "20,2.0", "30,33.0"]


def test_resuming_into_a_new_folder_starts_a_new_file(tmp_path):
    CsvSink(tmp_path / "metrics.csv", resume_at=20).close()
    assert lines(tmp_path / "metrics.csv") == ["frames"]


def test_the_metrics_of_another_run_are_not_overwritten(tmp_path):
    (tmp_path / "metrics.csv").write_text("frames\n")
    with pytest.raises(FileExistsError, match=r"metrics\.csv holds the metrics of another run; resume it"):
        CsvSink(tmp_path / "metrics.csv")


def test_a_file_that_is_no_metrics_file_is_refused(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,a\n1,2\n")
    with pytest.raises(ValueError, match="first column must be 'frames'"):
        CsvSink(tmp_path / "metrics.csv", resume_at=5)


@given(value=st.one_of(st.integers(), st.floats()))
def test_numbers_read_back_as_they_were(value):
    assert float(format_value(value)) == float(value) or math.isnan(value)


@settings(deadline=None)
@given(rows=st.lists(st.dictionaries(st.sampled_from("abcd"), st.floats(allow_nan=False)), max_size=8))
def test_whatever_the_order_of_columns_every_number_is_found_in_its_row(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "metrics.csv"
    sink = CsvSink(path)
    for frames, metrics in enumerate(rows):
        sink.log(frames, metrics)
    sink.close()
    read = read_rows(path)[1]
    assert [{name: float(cell) for name, cell in row.items() if cell and name != "frames"} for row in read] == rows
    assert [int(row["frames"]) for row in read] == list(range(len(rows)))


class Listed:
    def __init__(self, fails=False):
        self.rows, self.closed, self.fails = [], False, fails

    def log(self, frames, metrics):
        self.rows.append((frames, dict(metrics)))

    def close(self):
        self.closed = True
        if self.fails:
            raise OSError("disk full")


def test_a_group_hands_everything_on_and_closes_all_even_when_one_fails():
    first, second = Listed(fails=True), Listed(fails=True)
    group = SinkGroup([first, second])
    group.log(5, {"a": 1.0})
    with pytest.raises(OSError, match="disk full"):
        group.close()
    assert first.rows == second.rows == [(5, {"a": 1.0})]
    assert first.closed
    assert second.closed
