import sys
import time

import pytest

from swath.report.tensorboard_sink import TensorBoardSink


def scalars(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_scalars_stand_under_their_names_at_their_frames(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.log(10, {"train/return": 1.0})
    sink.log(20, {"train/return": 2.0})
    sink.close()
    assert scalars(tmp_path, "train/return") == [(10, 1.0), (20, 2.0)]


def test_what_lies_beyond_the_resumed_frame_is_hidden(tmp_path, monkeypatch):
    first = TensorBoardSink(tmp_path)
    for frames in (10, 20, 30):
        first.log(frames, {"a": 1.0})
    first.close()
    later = time.time() + 1.0
    monkeypatch.setattr(time, "time", lambda: later)  # files are read in the order of their names, which say the second
    second = TensorBoardSink(tmp_path, resume_at=20)
    second.log(30, {"a": 2.0})
    second.close()
    assert scalars(tmp_path, "a") == [(10, 1.0), (20, 1.0), (30, 2.0)]


def test_a_missing_extra_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r'pip install "swath\[tensorboard\]"'):
        TensorBoardSink(tmp_path)
