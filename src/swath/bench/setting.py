"""One way to collect: where, with how many workers, with how many envs each."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

INLINE = "inline"


@dataclass(frozen=True)
class Setting:
    """One way to collect.

    Attributes:
        backend: where workers live.
        workers: how many there are.
        envs: how many envs each of them steps together; `None` for an env that is batched already.
    """

    backend: str
    workers: int
    envs: int | None

    @property
    def size(self) -> int:
        """Envs in all, as far as that is known."""
        return self.workers * (self.envs or 1)

    def batch_of(self, frames: int) -> int:
        """Frames of a batch: as many as asked for or a few more, the same number from every env."""
        return ceil(frames / self.size) * self.size

    def keywords(self) -> dict[str, Any]:
        """What `Collector` is told of it."""
        envs = {} if self.envs is None else {"envs_per_worker": self.envs}
        if self.backend == INLINE:
            return envs
        return {**envs, "backend": self.backend, "num_collectors": self.workers, "sync": True}

    def code(self, env: str, policy: str, frames: int) -> str:
        """The line of code for it.

        Args:
            env: as code.
            policy: as code; empty for none.
            frames: of a batch.
        """
        given = [env, *([policy] if policy else []), f"frames_per_batch={self.batch_of(frames)}"]
        return f"Collector({', '.join(given + [f'{name}={value!r}' for name, value in self.keywords().items()])})"
