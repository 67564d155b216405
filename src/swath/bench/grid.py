"""Which settings are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from swath.bench.setting import INLINE, Setting


@dataclass(frozen=True)
class Grid:
    """All combinations of these that make sense.

    Attributes:
        backends: where workers may live.
        workers: how many there may be; inline there is one, whatever these are.
        envs: how many envs each may step together; empty for an env that is batched already.
    """

    backends: tuple[str, ...]
    workers: tuple[int, ...]
    envs: tuple[int, ...]

    def settings(self) -> list[Setting]:
        """In order, each once."""
        return list(dict.fromkeys(self._all()))

    def _all(self) -> Iterator[Setting]:
        for backend in self.backends:
            for workers in (1,) if backend == INLINE else self.workers:
                for envs in self.envs or (None,):
                    yield Setting(backend, workers, envs)
