"""The result of an evaluation: JSON, TensorDict, films."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from uneven_env import Shifted

from swath.evaluation.result import EvalResult, episodes_of
from swath.evaluators import Evaluator

ROWS = {1: (-2.0, 4, False, True, -1), 0: (1.5, 3, True, False, 11)}
COLUMNS = ["returns", "lengths", "terminated", "truncated", "seeds"]
ABOUT = {
    "step": 40_000,
    "seeding": "layout",
    "stopped": "ci",
    "retries": 2,
    "video_paths": ("a-step0-episode0.mp4",),
    "video_lengths": (3,),
    "video_truncated": True,
}


def a_result(metrics, rows=ROWS):
    return EvalResult(metrics, episodes_of(rows), **ABOUT)


def test_a_result_is_a_dict_that_the_caller_owns_with_episodes_in_order():
    numbers = {"eval/reward": 1.0}
    result = a_result(numbers)
    result["mine"] = 2.0
    assert isinstance(result, dict)
    assert result == {"eval/reward": 1.0, "mine": 2.0}
    assert numbers == {"eval/reward": 1.0}
    assert [getattr(result, name).dtype for name in COLUMNS] == [np.float64, np.int64, np.bool_, np.bool_, np.int64]
    returns, lengths, *ends, seeds = [getattr(result, name).tolist() for name in COLUMNS]
    assert (returns, lengths, seeds) == ([1.5, -2.0], [3, 4], [11, -1])
    assert ends == [[True, False], [False, True]]


def test_the_tensordict_is_flat_and_scalar_with_double_precision():
    film = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    numbers = {"eval/reward": 0.1, "eval/frames": 2**40, "eval/solved": True, "eval/video": film}
    td = a_result(numbers).to_tensordict()
    assert td.batch_size == torch.Size([])
    assert set(td.keys()) == set(numbers)
    assert [td[name].dtype for name in numbers] == [torch.float64, torch.int64, torch.bool, torch.uint8]
    assert td["eval/reward"].item() == 0.1
    assert td["eval/reward"].shape == ()


def test_the_episodes_are_a_table_in_csv_and_in_pandas(tmp_path):
    result = a_result({"eval/reward": 1.0})
    result.to_csv(tmp_path / "new" / "episodes.csv")
    lines = (tmp_path / "new" / "episodes.csv").read_text().splitlines()
    assert lines[0] == "episode,return,length,terminated,truncated,seed"
    assert lines[1:] == ["0,1.5,3,True,False,11", "1,-2.0,4,False,True,-1"]
    pytest.importorskip("pandas")
    assert list(result.to_dataframe()) == lines[0].split(",")
    assert result.to_dataframe()["return"].tolist() == [1.5, -2.0]


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pandas is needed for to_dataframe\(\): pip install \"swath\[pandas\]\""):
        a_result({}).to_dataframe()


TENSORS = [
    *(torch.tensor(3), torch.rand(2, 3), torch.zeros(0, 4)),
    *(torch.tensor([True]), torch.tensor([0.1]).bfloat16(), torch.tensor([math.nan, math.inf])),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}")
def test_json_keeps_the_dtype_and_shape_of_tensors(tensor):
    back = EvalResult.from_json(a_result({"eval/x": tensor}).to_json())["eval/x"]
    torch.testing.assert_close(back, tensor, rtol=0, atol=0, equal_nan=True)


@given(
    st.dictionaries(st.text(), st.floats() | st.integers(-(2**63), 2**63) | st.booleans()),
    st.lists(st.floats(), min_size=1, max_size=5),
)
@settings(max_examples=50, deadline=None)
def test_json_brings_any_numbers_back_bit_for_bit(metrics, returns):
    result = a_result(metrics, {n: (value, 1, True, False, n) for n, value in enumerate(returns)})
    back = EvalResult.from_json(result.to_json())
    assert repr(dict(back)) == repr(dict(result))
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(back, name), getattr(result, name), strict=True)
    assert {name: getattr(back, name) for name in ABOUT} == ABOUT


@pytest.mark.parametrize("text", ["[1]", "{}", '{"swath_eval_result": 99}', "not json", "[" * 10**5])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="not the JSON of an EvalResult, format 2: "):
        EvalResult.from_json(text)


MISSING = "(missing)"
PARTS = [
    "metrics",
    "episodes",
    "about",
    *(f"episodes.{name}" for name in COLUMNS),
    *(f"about.{name}" for name in ABOUT),
]
WRONG = [
    *((part, MISSING, f"there is no entry '{part.rpartition('.')[2]}'") for part in PARTS),
    ("metrics", 3, ""),
    ("episodes", [], ""),
    ("episodes.returns", [1.0, 2.0, 3.0, 4.0, 5.0], ""),
    ("episodes.lengths", ["many"], ""),
    ("about", None, ""),
    ("metrics.eval/x", {"float": "much"}, ""),
    ("metrics.eval/x", {"dtype": "float32", "shape": [3], "values": [1.0]}, ""),
    ("metrics.eval/x", {"dtype": "complex19", "shape": [1], "values": [1.0]}, ""),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=str)
def test_json_with_a_missing_or_a_wrong_part_is_refused(path, value, message):
    part = document = json.loads(a_result({"eval/x": 1.0}).to_json())
    *outer, last = path.split(".")
    for name in outer:
        part = part[name]
    part[last] = value
    if value is MISSING:
        del part[last]
    with pytest.raises(ValueError, match=f"not the JSON of an EvalResult, format 2: {message}"):
        EvalResult.from_json(json.dumps(document))


# Films


def evaluator(**options):
    options = {"num_trajectories": 5, "record_video": 3, **options}
    return Evaluator("uneven_env:UnevenEnv-v0", policy_factory=Shifted, **options)


@pytest.mark.parametrize("layout", [{}, {"num_envs": 2}, {"backend": "process", "num_workers": 2}], ids=str)
def test_the_first_episodes_follow_each_other_in_the_result(layout, fork_server):
    with evaluator(**layout) as ev:
        result = ev.evaluate()
    assert result.video_lengths == tuple(result.lengths[:3].tolist())
    shades = [step for length in result.video_lengths for step in range(1, length + 1)]
    assert result["eval/video"].shape == (len(shades), 4, 6, 3)
    assert result["eval/video"][:, 0, 0, 0].tolist() == shades
    assert (result.video_paths, result.video_truncated) == ((), False)


@pytest.mark.parametrize(("options", "rate"), [({}, "5 fps"), ({"video_fps": 7, "num_envs": 2}, "7 fps")], ids=str)
def test_files_have_the_frames_and_the_rate(tmp_path, options, rate):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    with evaluator(video_dir=tmp_path, log_prefix="a/b", **options) as ev:
        result = ev.evaluate(step=40)
        assert ev.stats()["write_errors"] == 0
    assert "a/b/video" not in result
    assert result.video_paths == tuple(str(tmp_path / f"a-b-step40-episode{number}.mp4") for number in range(3))
    for path, length in zip(result.video_paths, result.lengths[:3], strict=True):
        command = [ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "null", "-"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert rate in report
        assert ffmpeg.count_frames_and_secs(path)[0] == length


def test_beyond_the_memory_filming_stops_and_the_evaluation_goes_on():
    with evaluator(max_video_bytes=3 * 4 * 6 * 3) as ev:
        result = ev.evaluate()
    assert result.video_truncated
    assert sum(result.video_lengths) == 3
    assert result["eval/num_episodes"] == 5


def test_a_film_that_cannot_be_written_is_counted(tmp_path, caplog):
    pytest.importorskip("imageio_ffmpeg")
    with evaluator(video_dir=tmp_path / "films") as ev:
        (tmp_path / "films").write_text("in the way")
        result = ev.evaluate()
        assert ev.stats()["write_errors"] == 3
    assert result.video_paths == ()
    assert "could not be written" in caplog.text


def test_without_a_film_writer_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r'pip install "swath\[video\]"'):
        evaluator(video_dir=tmp_path)
