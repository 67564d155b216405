"""What a run is made of: the values of `swath train`'s options, checked in one place and kept with every checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from swath.cli.failure import UsageError
from swath.cli.logs import logs_named
from swath.cli.options import JUDGES, require_in_range, require_room
from swath.cli.words import INLINE, THREAD, flag

NUMBERS = ("frames", "envs", "workers", "batch", "seed", "eval_every", "eval_episodes", "threads")
OF_THE_RUN = ("env", "envs", "workers", "backend", "batch", "seed", "ppo")
"""What a resumed run cannot change."""


@dataclass(frozen=True)
class RunConfig:
    """The options of one run.

    Attributes:
        env: as it is named.
        frames: where the training ends, with the first batch that reaches it.
        envs: envs that a worker steps together.
        workers: how many workers collect.
        backend: where they live.
        batch: frames of a batch, collected between two updates.
        seed: root of all seeds.
        device: where the networks are.
        eval_every: frames from one evaluation to the next; 0 evaluates at the end only, `None` ten times in all.
        eval_episodes: episodes of an evaluation.
        eval_backend: where evaluations run beside the training; `"none"` for no evaluations.
        threads: torch's threads in this process; other processes have one.
        video: whether the final policy is filmed.
        log: where its numbers go beside `metrics.csv`, as on the command line; `None`: to TensorBoard, if it is there.
        ppo: settings of the learner that differ from those chosen for the env, by name.

    Raises:
        UsageError: a number out of range, several workers inline, an unknown backend or log; the message says which.
    """

    env: str
    frames: int = 100_000
    envs: int = 8
    workers: int = 1
    backend: str = INLINE
    batch: int = 2048
    seed: int = 0
    device: str = "cpu"
    eval_every: int | None = None
    eval_episodes: int = 20
    eval_backend: str = THREAD
    threads: int = 1
    video: bool = True
    log: str | None = None
    ppo: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_in_range(**{name: getattr(self, name) for name in NUMBERS})
        require_room(self.workers, self.backend)
        if self.eval_backend not in JUDGES:
            raise UsageError(f"--eval-backend {self.eval_backend} must be one of {', '.join(JUDGES)}")
        logs_named(self.log)

    @property
    def eval_gap(self) -> int:
        """Frames from one evaluation to the next; 0: none but the last."""
        return max(self.frames // 10, 1) if self.eval_every is None else self.eval_every

    def changed(self, given: dict[str, Any]) -> RunConfig:
        """This configuration with what the user gave beside `--resume`.

        Raises:
            UsageError: an option that belongs to the run has another value now.
        """
        for name in OF_THE_RUN:
            if name in given and given[name] != getattr(self, name):
                want = getattr(self, name)
                raise UsageError(f"{flag(name)} {given[name]} is {want} in the run that --resume names; leave it out")
        return replace(self, **given)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for checkpoints and summaries."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """The configuration that `to_dict` wrote.

        Raises:
            ValueError: names that this version does not know, or none for the env.
        """
        unknown = sorted(set(values) - {item.name for item in fields(cls)})
        if unknown or "env" not in values:
            raise ValueError(f"its configuration has the keys {sorted(values)}, unknown {unknown}; it needs 'env'")
        return cls(**values)
