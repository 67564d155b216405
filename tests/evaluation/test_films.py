"""Films of evaluations, in results and as files."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from swath.evaluators import Evaluator


class Shades(gym.Env):
    """Episode lengths by seed; each frame is as bright as its step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}
    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.now = 2 + (seed or 0) % 4, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.now += 1
        return np.zeros(1, np.float32), 1.0, self.now >= self.length, False, {}

    def render(self):
        return np.full((16, 32, 3), self.now, np.uint8)


def evaluator(**options):
    options = {"num_trajectories": 5, "record_video": 3, **options}
    return Evaluator(Shades, policy_factory=lambda: lambda observation: observation[..., 0].long(), **options)


@pytest.mark.parametrize("layout", [{}, {"num_envs": 2}, {"backend": "process", "num_workers": 2}], ids=str)
def test_the_first_episodes_follow_each_other_in_the_result(layout):
    with evaluator(**layout) as ev:
        result = ev.evaluate()
    assert result.video_lengths == tuple(result.lengths[:3].tolist())
    shades = [step for length in result.video_lengths for step in range(1, length + 1)]
    assert result["eval/video"].shape == (len(shades), 16, 32, 3)
    assert result["eval/video"][:, 0, 0, 0].tolist() == shades
    assert (result.video_paths, result.video_truncated) == ((), False)


@pytest.mark.parametrize(("options", "rate"), [({}, "12 fps"), ({"video_fps": 7, "num_envs": 2}, "7 fps")], ids=str)
def test_files_have_the_frames_and_the_rate(tmp_path, options, rate):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    with evaluator(video_dir=tmp_path, log_prefix="a/b", **options) as ev:
        result = ev.evaluate(step=40)
        assert ev.stats()["write_errors"] == 0
    assert "a/b/video" not in result
    assert result.video_paths == tuple(str(tmp_path / f"a-b-step40-episode{number}.mp4") for number in range(3))
    for path, length in zip(result.video_paths, result.lengths[:3], strict=True):
        command = [ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "null", "-"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert rate in told
        assert ffmpeg.count_frames_and_secs(path)[0] == length


def test_beyond_the_memory_filming_stops_and_the_evaluation_goes_on():
    with evaluator(max_video_bytes=3 * 16 * 32 * 3) as ev:
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


def test_without_what_writes_films_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r'pip install "swath\[video\]"'):
        evaluator(video_dir=tmp_path)
