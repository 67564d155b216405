"""What a worker is configured with."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swath.rollout_workers.config.algorithm_config import AlgorithmConfig


def set_environment(config: AlgorithmConfig, worker_index: int) -> None:
    """Put the variables of the config into this process's environment, where they stay."""
    variables = config.extra_python_environs_for_worker if worker_index else config.extra_python_environs_for_driver
    os.environ.update({str(name): str(value) for name, value in variables.items()})


def config_of(given: Any) -> AlgorithmConfig:
    """A config of one's own, thawed and checked.

    Raises:
        TypeError: it is neither a config nor a dict.
        ValueError: settings that contradict each other.
    """
    config = thawed(given)
    config.validate()
    return config


def thawed(given: Any) -> AlgorithmConfig:
    """A config of one's own, to be changed before it is checked.

    Raises:
        TypeError: it is neither a config nor a dict.
    """
    if given is None:
        config = AlgorithmConfig()
    elif isinstance(given, AlgorithmConfig):
        config = given.copy(copy_frozen=False)
    elif isinstance(given, Mapping):
        config = AlgorithmConfig.from_dict(given)
    else:
        raise TypeError(f"config={given!r} is of type {type(given).__name__}; give an AlgorithmConfig, a dict, or None")
    return config


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
