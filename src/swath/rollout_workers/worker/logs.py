"""What a worker writes of itself: the library's log, in its directory."""

from __future__ import annotations

import logging
from pathlib import Path

_LOGGER = logging.getLogger("swath")
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class WorkerLog:
    """The library's log into a file, until it is closed.

    Args:
        log_dir: where; made if it is missing. None: nothing is written.
        name: of the file.
        level: of the logger; "WARN", which it is by default, leaves it as it is.
    """

    def __init__(self, log_dir: str | None, name: str, level: str) -> None:
        self._handler: logging.Handler | None = None
        if level != "WARN":
            _LOGGER.setLevel(level)
        if log_dir is not None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
            self._handler = logging.FileHandler(Path(log_dir) / name, encoding="utf-8", delay=True)
            self._handler.setFormatter(logging.Formatter(_FORMAT))
            _LOGGER.addHandler(self._handler)

    def close(self) -> None:
        """Write no more; twice is fine."""
        if self._handler is not None:
            _LOGGER.removeHandler(self._handler)
            self._handler.close()
            self._handler = None
