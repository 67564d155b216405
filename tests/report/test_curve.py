import sys
from contextlib import nullcontext

import matplotlib as mpl
import numpy as np
import pytest

from swath.report.sinks import CsvSink, draw_curve

GREEN = np.array([0x0B, 0x6E, 0x4F]) / 255


@pytest.fixture
def metrics(tmp_path):
    sink = CsvSink(tmp_path / "metrics.csv")
    sink.log(10, {"loss": 1.0})
    sink.log(20, {"train/return": 5.0})
    sink.log(30, {"train/return": 6.0, "eval/reward": 7.0, "eval/reward_ci_low": 6.5, "eval/reward_ci_high": 8.0})
    sink.log(40, {"eval/reward": 9.0})
    sink.close()
    return tmp_path / "metrics.csv"


def has_green(path):
    picture = mpl.image.imread(path)[:, :, :3]
    return bool((np.abs(picture - GREEN).max(axis=2) < 0.02).any())


COLUMNS = ("train/return", "eval/reward", "Env-v0")


def test_the_picture_shows_the_evaluation_and_leaves_global_settings_alone(metrics, tmp_path):
    before = dict(mpl.rcParams)
    draw_curve(tmp_path / "curve.png", metrics, *COLUMNS)
    assert mpl.image.imread(tmp_path / "curve.png").shape == (675, 1200, 4)
    assert has_green(tmp_path / "curve.png")
    assert dict(mpl.rcParams) == before


def test_a_run_stopped_before_the_first_episode_still_has_a_picture(tmp_path):
    CsvSink(tmp_path / "metrics.csv").close()
    draw_curve(tmp_path / "curve.png", tmp_path / "metrics.csv", *COLUMNS)
    assert not has_green(tmp_path / "curve.png")


@pytest.mark.parametrize("missing", ["matplotlib.pyplot", "matplotlib"])
def test_drawing_needs_matplotlib_and_no_pyplot(missing, metrics, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r'pip install "swath\[plot\]"') if missing == "matplotlib" else nullcontext():
        draw_curve(tmp_path / "curve.png", metrics, *COLUMNS)
