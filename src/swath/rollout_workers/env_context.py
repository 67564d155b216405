"""What an env creator is given: the user's env config, and which env of which worker is being made."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any


class EnvContext(dict[str, Any]):
    """The env config, with what else an env may want to know as attributes.

    An empty context is falsy, as any dict: ask `is None` where a missing one is meant.

    Attributes:
        worker_index: of the worker that makes the env; 0 is the local one.
        vector_index: of the env within the worker.
        remote: whether each env of the worker lives in a place of its own.
        num_workers: how many remote workers the set has; None if nobody said.
        recreated_worker: whether the worker replaces one that was lost.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any],
        worker_index: int,
        vector_index: int = 0,
        remote: bool = False,
        num_workers: int | None = None,
        recreated_worker: bool = False,
    ) -> None:
        super().__init__(env_config)
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.remote = remote
        self.num_workers = num_workers
        self.recreated_worker = recreated_worker

    def copy(self) -> EnvContext:
        """A context with the same values, not copied, and the same attributes; a dict's own would be a plain dict."""
        return copy(self)

    def copy_with_overrides(
        self,
        env_config: Mapping[str, Any] | None = None,
        worker_index: int | None = None,
        vector_index: int | None = None,
        remote: bool | None = None,
        num_workers: int | None = None,
        recreated_worker: bool | None = None,
    ) -> EnvContext:
        """A context with a deep copy of the content; what is None stays as it is."""
        return EnvContext(
            deepcopy(dict(self if env_config is None else env_config)),
            self.worker_index if worker_index is None else worker_index,
            self.vector_index if vector_index is None else vector_index,
            self.remote if remote is None else remote,
            self.num_workers if num_workers is None else num_workers,
            self.recreated_worker if recreated_worker is None else recreated_worker,
        )

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Add the entries whose keys are not here yet."""
        for key, value in defaults.items():
            self.setdefault(key, value)

    def __str__(self) -> str:
        content = "".join(f"{key!r}: {value!r}, " for key, value in self.items())
        where = f"worker={self.worker_index}/{self.num_workers}, vector_idx={self.vector_index}, remote={self.remote}"
        return f"{{{content}{where}}}"
