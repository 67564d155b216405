"""What a measurement is made of: the values of `swath bench`'s options, checked in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swath.bench import Grid, Rounds, Subject
from swath.cli.actors import Actor, actor_named
from swath.cli.failure import UsageError, told_if_unserved, told_in_one_line
from swath.cli.naming import maker_named
from swath.cli.numbers import require_in_range
from swath.cli.parts import device_named
from swath.cli.places import RAY, backend_named
from swath.doctor.machine import cpus_allowed
from swath.rollout.hosts.sources import Source, make_env
from swath.rollout.hosts.vector_reset import is_vector_env

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMS = (".csv", ".json")
MOST_WORKERS = 8


@dataclass(frozen=True)
class BenchConfig:
    """The options of one measurement.

    Attributes:
        env: as it is named.
        policy: who acts, as it is named.
        policy_factory: who makes who acts, as it is named.
        backends: where workers may live, with commas.
        workers: how many there may be; empty for as many as there are CPUs, and half of them, and so on.
        envs: how many envs each may step together.
        batch: frames of a batch.
        rounds: turns of each setting.
        seconds: length of a turn.
        seed: of envs and actions.
        device: where the policy acts.
        threads: torch's threads in this process.

    Raises:
        UsageError: a number out of range; the message names the option.
    """

    env: str
    policy: str | None = None
    policy_factory: str | None = None
    backends: str = "inline,process"
    workers: tuple[int, ...] = ()
    envs: tuple[int, ...] = (1, 4, 8, 16)
    batch: int = 2048
    rounds: int = 3
    seconds: float = 1.0
    seed: int = 0
    device: str = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        for count in (*self.workers, *self.envs):
            if count < 1:
                raise UsageError(f"numbers of workers and envs must be at least 1, not {count}")
        require_in_range(self, "batch", "seed", "threads")

    def length(self) -> Rounds:
        """How long is measured."""
        with told_in_one_line():
            return Rounds(self.rounds, self.seconds)


@dataclass(frozen=True)
class Measured:
    """What the options name.

    Attributes:
        subject: env and policy.
        actor: who acts, with the user's words for it.
        grid: in which settings.
    """

    subject: Subject
    actor: Actor
    grid: Grid


def measured(config: BenchConfig, given: Sequence[str]) -> Measured:
    """Find env and policy, and look whether the env is batched already.

    Args:
        config: the options.
        given: names of those that the user gave.

    Raises:
        UsageError: there is no such env, policy, backend or device, or options contradict each other.
    """
    env = maker_named(config.env)
    backends = tuple(dict.fromkeys(backend_named(name.strip()) for name in config.backends.split(",")))
    device = str(device_named(config.device))
    if RAY in backends and device != "cpu":
        raise UsageError(f"--device {config.device}: workers on Ray act on the CPU; leave ray out of --backends")
    actor = actor_named(config.policy, config.policy_factory, config.env)
    subject = Subject(env, actor.policy, actor.factory, config.batch, device, config.seed)
    workers = config.workers or doubled(cpus_allowed())
    return Measured(subject, actor, Grid(backends, workers, _envs(config, env, given)))


def doubled(most: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, no more than `most` and `MOST_WORKERS`."""
    return tuple(2**power for power in range(MOST_WORKERS.bit_length()) if 2**power <= min(most, MOST_WORKERS))


def require_form(out: Path | None) -> None:
    """Refuse files of other forms, and folders.

    Raises:
        UsageError: it is one.
    """
    if out is not None and out.is_dir():
        raise UsageError(f"--out {out} is a folder; name a file in it, such as {out / 'bench.csv'}")
    if out is not None and out.suffix not in FORMS:
        raise UsageError(f"--out {out} must end in one of {', '.join(FORMS)}")


def _envs(config: BenchConfig, env: Any, given: Sequence[str]) -> tuple[int, ...]:
    """How many envs to step together; nothing for an env that is batched already."""
    with told_in_one_line(), told_if_unserved(config.env):
        made = make_env(Source(env))
    made.close()
    if not is_vector_env(made):
        return config.envs
    if "envs" in given:
        raise UsageError(f"--envs: {config.env} is batched already ({made.num_envs} envs); leave it out")
    return ()
