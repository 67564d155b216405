import sys

import matplotlib as mpl
import numpy as np
import pytest

from swath.report.csv_sink import CsvSink
from swath.report.curve import Curve, draw_curve, read_curve

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


def test_the_curve_holds_the_rows_where_something_was_measured(metrics):
    curve = read_curve(metrics, "train/return", "eval/reward")
    assert curve.training.tolist() == [[20.0, 30.0], [5.0, 6.0]]
    assert curve.evaluation[:, 0].tolist() == [30.0, 7.0, 6.5, 8.0]
    assert curve.evaluation[:2, 1].tolist() == [40.0, 9.0]
    assert np.isnan(curve.evaluation[2:, 1]).all()


def test_the_picture_shows_the_evaluation_and_leaves_global_settings_alone(metrics, tmp_path):
    before = dict(mpl.rcParams)
    draw_curve(tmp_path / "curve.png", read_curve(metrics, "train/return", "eval/reward"), "Env-v0")
    assert mpl.image.imread(tmp_path / "curve.png").shape == (675, 1200, 4)
    assert has_green(tmp_path / "curve.png")
    assert dict(mpl.rcParams) == before


def test_a_run_stopped_before_the_first_episode_still_has_a_picture(tmp_path):
    draw_curve(tmp_path / "curve.png", Curve(np.empty((2, 0)), np.empty((4, 0))), "Env-v0")
    assert not has_green(tmp_path / "curve.png")


def test_a_metrics_file_without_rows_gives_an_empty_curve(tmp_path):
    CsvSink(tmp_path / "metrics.csv").close()
    curve = read_curve(tmp_path / "metrics.csv", "train/return", "eval/reward")
    assert (curve.training.shape, curve.evaluation.shape) == ((2, 0), (4, 0))


def test_drawing_needs_no_pyplot(metrics, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    draw_curve(tmp_path / "curve.png", read_curve(metrics, "train/return", "eval/reward"), "Env-v0")


def test_the_missing_plot_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "swath\[plot\]"'):
        draw_curve(tmp_path / "curve.png", Curve(np.empty((2, 0)), np.empty((4, 0))), "Env-v0")
