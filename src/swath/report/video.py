"""Video files: uint8 frames as an mp4 file that every player opens.

```
write(frame [H, W, 3]) ──raw bytes──▶ ffmpeg (H.264, yuv420p, even sizes) ──▶ .name.tmp.mp4 ──close──▶ name.mp4
```
"""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swath.extras import import_extra
from swath.report.atomic import replace_atomically

CODING = "-an -c:v libx264 -pix_fmt yuv420p -crf 20 -movflags +faststart -vf pad=ceil(iw/2)*2:ceil(ih/2)*2"
ENCODE_DEADLINE_S = 120.0
"""Time limit for the encoder to finish after the last frame."""


class VideoWriter(ExitStack):
    """Writer of a video file, which appears when the writer is closed; closing twice is fine.

    Use it as a context manager: leaving by an exception stops the encoder and leaves no file. Without frames no file is
    written. Frames are `[H, W, 3]`, `[H, W, 4]` (alpha is dropped), `[H, W, 1]` or `[H, W]` (grey), uint8,
    all of one size; odd sizes get one black row or column.

    Args:
        path: the `.mp4` file.
        fps: frames per second, > 0.

    Raises:
        ImportError: imageio-ffmpeg is not installed; the message names the extra.
    """

    def __init__(self, path: str | Path, fps: float = 30.0) -> None:
        super().__init__()
        self.path, self.fps, self.frames = path, fps, 0
        self._ffmpeg: str = import_extra("imageio_ffmpeg", extra="video", purpose="to write videos").get_ffmpeg_exe()
        self._size = (0, 0)

    def write(self, frame: NDArray[Any]) -> None:
        """Add one frame.

        Raises:
            ValueError: a wrong dtype, rank or size.
            OSError: the encoder failed; the message has its output.
        """
        image = as_rgb(frame)
        size = (image.shape[1], image.shape[0])
        if not self.frames:
            self._start(size)
        if size != self._size:
            raise ValueError(f"frame {self.frames} is {size}, the first was {self._size} (width, height)")
        assert self._encoder.stdin is not None
        try:
            self._encoder.stdin.write(image.data)
        except BrokenPipeError:
            raise self._failure() from None
        self.frames += 1

    def _start(self, size: tuple[int, int]) -> None:
        """Start ffmpeg in a new process group, so that Ctrl-C does not reach it."""
        self._size, draft = size, self.enter_context(replace_atomically(self.path))
        self._errors = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{size[0]}x{size[1]}", "-r", f"{self.fps:.6g}"]
        command = [self._ffmpeg, "-y", "-v", "error", *source, "-i", "-", *CODING.split(), str(draft)]
        self._encoder = subprocess.Popen(  # noqa: S603  the program is imageio-ffmpeg's own, the arguments are ours
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._errors, process_group=0
        )
        self.push(self._finish)

    def _finish(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._encoder.communicate(timeout=ENCODE_DEADLINE_S)
                if self._encoder.returncode:
                    raise self._failure()
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"ffmpeg did not finish the video within {ENCODE_DEADLINE_S:.0f} s") from None
        finally:
            self._encoder.kill()
            self._encoder.communicate()

    def _failure(self) -> OSError:
        code = self._encoder.wait(timeout=ENCODE_DEADLINE_S)
        self._errors.seek(0)
        output = self._errors.read().decode(errors="replace").strip() or "nothing"
        return OSError(f"ffmpeg stopped with exit code {code}; its output: {output}")


def as_rgb(frame: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the frame as contiguous `[H, W, 3]` uint8, without alpha, and with grey repeated.

    Raises:
        ValueError: a wrong dtype or shape.
    """
    image = np.asarray(frame)
    if image.ndim == 2:
        image = image[:, :, None]
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in {1, 3, 4} or not image.size:
        raise ValueError(f"frame of shape {image.shape} and dtype {image.dtype}; wanted uint8 [H, W, 3] (or 1, 4)")
    if image.shape[2] == 1:
        image = np.repeat(image, 3, axis=2)
    return np.ascontiguousarray(image[:, :, :3])
