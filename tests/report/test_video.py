import re
import subprocess

import imageio_ffmpeg
import numpy as np
import pytest

from swath.report.video import VideoWriter, as_rgb
from toys import DEADLINE_S


def read(path):
    """What ffmpeg says of the film, and its frames."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    answer = subprocess.run(command, capture_output=True, check=True, timeout=DEADLINE_S)
    about = re.search(r"Video: (\w+).*?, (\w+)\(.*?, (\d+)x(\d+).*?, (\d+) fps", answer.stderr.decode())
    width, height = int(about[3]), int(about[4])
    return about.groups(), np.frombuffer(answer.stdout, np.uint8).reshape(-1, height, width, 3)


def write_video(path, frames, **options):
    with VideoWriter(path, **options) as film:
        for frame in frames:
            film.write(frame)


def flat(level, height=48, width=64):
    return np.full((height, width, 3), level, np.uint8)


def test_the_frames_read_back_in_their_order_and_colour(tmp_path):
    levels = [0, 60, 120, 180, 240]
    write_video(tmp_path / "film.mp4", map(flat, levels), fps=10)
    about, frames = read(tmp_path / "film.mp4")
    assert about == ("h264", "yuv420p", "64", "48", "10")
    assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "film.mp4")) == (5, 0.5)
    assert [round(float(frame.mean()) / 60) * 60 for frame in frames] == levels
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 3), (4, 6, 4)])
def test_grey_is_repeated_and_alpha_dropped(shape):
    image = as_rgb(np.full(shape, 7, np.uint8))
    assert image.shape == (4, 6, 3)
    assert (image == 7).all()


@pytest.mark.parametrize(
    "frame", [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 2), np.uint8), np.zeros(4, np.uint8)]
)
def test_what_is_no_image_is_refused_with_its_shape_and_dtype(frame):
    with pytest.raises(ValueError, match=r"frame of shape .* wanted uint8"):
        as_rgb(frame)


def test_an_exception_of_the_source_leaves_no_file(tmp_path):
    def frames():
        yield flat(1)
        raise KeyError("env broke")

    with pytest.raises(KeyError):
        write_video(tmp_path / "film.mp4", frames())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("level", ["at the end", "on the way"])
def test_what_the_encoder_says_when_it_fails_is_passed_on(level, tmp_path, monkeypatch):
    script = tmp_path / "ffmpeg"
    wait = "cat > /dev/null; " if level == "at the end" else ""
    script.write_text(f"#!/bin/sh\n{wait}echo no such codec >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(script))
    with pytest.raises(OSError, match="ffmpeg stopped with exit code 3; its output: no such codec"):
        write_video(tmp_path / "film.mp4", [flat(1, 1000, 1000)] * 5)
    assert not (tmp_path / "film.mp4").exists()


def test_a_full_disk_is_an_error_and_leaves_no_film(small_disk):
    noise = np.random.default_rng(0)
    with pytest.raises(OSError, match="No space left"):
        write_video(small_disk / "film.mp4", (noise.integers(0, 255, (256, 256, 3), np.uint8) for _ in range(60)))
    assert list(small_disk.iterdir()) == []
