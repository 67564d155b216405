"""The worker core: a host, a policy and the loop, which together make fragments.

draw ──▶ begin episodes where needed ──▶ T × steps() ──▶ Rows ──▶ ids ──▶ Fragment(version)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from swath.errors import warn_of_no_effect
from swath.options import EpisodeRules, Faults
from swath.rollout.buffer import Buffer, Rows, column_of
from swath.rollout.fragment import Fragment
from swath.rollout.hosts.base import EnvRaised, Host
from swath.rollout.loop import Rules, Stage, Step, go_on, steps
from swath.rollout.policies import BoundPolicy, Finite, Randomly, require_finite
from swath.rollout.random_policy import RandomPolicy
from swath.rollout.random_state import PrivateStreams
from swath.rollout.spaces import Array, Leaf, Leaves
from swath.rollout.trajectories import NO_TRAJECTORY, TrajectoryIds
from swath.rollout.until import StepLimit
from swath.seeds import derive

MOST_RESTARTS_IN_A_ROW = 3


@dataclass(frozen=True)
class Place:
    """Who a worker is.

    Attributes:
        worker: its index.
        n_steps: T, the steps of a fragment.
        stopped: asked once a step; true ends the fragment early.
    """

    worker: int
    n_steps: int
    stopped: Callable[[], bool] | None = None


@dataclass
class Tally:
    """What went wrong in this worker.

    Attributes:
        env_errors: exceptions of envs.
        restarts: how often the env source was built anew.
        fragments_lost: fragments broken by an exception.
        frames_discarded: good frames in them.
    """

    env_errors: int = 0
    restarts: int = 0
    fragments_lost: int = 0
    frames_discarded: int = 0


@dataclass
class Worker:
    """Makes fragments of T steps of B envs. Used by one thread at a time.

    Attributes:
        host: the envs.
        policy: bound to the host.
        observation: leaves of the host's first reset, with which the first episodes begin.
        place: who this worker is.
        episodes: when episodes begin and end.
        faults: what to do when envs fail.
        version: of the policy's weights.
    """

    host: Host
    policy: BoundPolicy
    observation: Leaves
    place: Place
    episodes: EpisodeRules = field(default_factory=EpisodeRules)
    faults: Faults = field(default_factory=Faults)
    version: int = 0

    def __post_init__(self) -> None:
        spec = self.host.spec
        self.tally = Tally()
        self.life = 0
        self.seed: int | None = None
        self._randomly = Randomly(RandomPolicy(), spec, like=self.policy)
        self._acting = Finite(self.policy) if self.faults.check_finite else self.policy
        self._stage = Stage(self.observation)
        self._stale = False
        self._streams: PrivateStreams | None = None
        self._ids = TrajectoryIds(spec.num_envs, worker=self.place.worker)
        self._buffer = Buffer([column_of(leaf) for leaf in self.observation], self.policy.columns, self.place.n_steps)
        self._rules = self._make_rules()

    @property
    def next_id(self) -> int:
        """Above every trajectory id given."""
        return self._ids.next_id

    def collect(self, *, randomly: bool = False) -> Fragment:
        """Collect one fragment.

        Raises:
            Exception: what an env or the policy raised, as its own type with a note; the envs then begin new episodes
                with the next fragment.
        """
        for _ in range(MOST_RESTARTS_IN_A_ROW):
            try:
                return self._collect(randomly=randomly)
            except EnvRaised as raised:
                self.tally.env_errors += 1
                if self.faults.on_env_error != "restart":
                    raise self._noted(raised) from raised.cause.__cause__
                last = raised
                self._restart()
        raise self._noted(last) from last.cause.__cause__

    def begin_episodes(self, envs: list[int] | None = None) -> None:
        """Begin fresh episodes with the next fragment, in all envs or in these."""
        if envs is None:
            self._stale = True
        else:
            self._stage.due = sorted({*self._stage.due, *envs})
            self._ids.begin(envs)

    def set_seed(self, seed: int, *, static: bool = False) -> None:
        """Seed every env and the generators of torch, numpy and `random` as this worker sees them; begin episodes."""
        n = self.host.spec.num_envs
        self.seed = seed
        if self.host.spec.seeding == "none":
            warn_of_no_effect(f"seed={seed}", f"{self.host.env} takes seeds only where it is made", stacklevel=5)
        self._streams = PrivateStreams(seed, self.place.worker, self.life)
        first = self.place.worker * n
        seeds = [seed] * n if static else [derive(seed, "env", first + env, self.life) for env in range(n)]
        with self._streams.swapped():
            self._reset(seeds)

    def next_life(self, life: int) -> None:
        """Go on under another life number, so that ids exceed all before; fresh episodes begin."""
        self.life = life
        self._ids = TrajectoryIds(self.host.spec.num_envs, worker=self.place.worker, life=life)
        if self.seed is None:
            self._stale = True
        else:
            self.set_seed(self.seed)

    def stop_when(self, halted: Callable[[], bool]) -> None:
        """End fragments early also when `halted()`."""
        asked = self.place.stopped
        stopped = halted if asked is None else lambda: halted() or asked()
        self.place = replace(self.place, stopped=stopped)

    def move_to(self, index: int) -> None:
        """Be worker `index` from the next episode on."""
        self.place = replace(self.place, worker=index)
        self.next_life(self.life)

    def blank_rows(self) -> Rows:
        """Rows of a fragment, all zero."""
        rows = self._buffer.open()
        rows.blank_from(0)
        rows.valid = None
        return rows

    def close(self) -> None:
        """Close the envs."""
        self.host.close()

    def _collect(self, *, randomly: bool) -> Fragment:
        rows, made = self._buffer.open(), 0
        try:
            with torch.no_grad(), self._random_states():
                if self._stale or self.episodes.reset_at_each_iter:
                    self._reset(None)
                for made, step in enumerate(self._drawn(self._randomly if randomly else self._acting), start=1):
                    self._buffer.write(rows, made - 1, step)
        except BaseException as error:
            self._lose(made)
            if isinstance(error, Exception) and not isinstance(error, EnvRaised):
                error.add_note(f"raised while {self._who()} collected")
            raise
        return self._fragment(rows, made)

    def _drawn(self, policy: Any) -> Iterator[Step]:
        source = steps(self.host, policy, self._stage, self._rules)
        stopped = self.place.stopped
        for _ in range(self.place.n_steps):
            if stopped is not None and stopped():
                return
            yield next(source)

    def _fragment(self, rows: Rows, made: int) -> Fragment:
        if made < self.place.n_steps:
            rows.blank_from(made)
        if self.faults.check_finite:
            _require_finite_rows(self.host.spec.observation, rows)
        if rows.restarted:
            self._ids.begin(rows.restarted)
        ids, counts = self._label(rows, made)
        return Fragment(rows, ids, counts, self.version, self.place.worker, self.life)

    def _label(self, rows: Rows, made: int) -> tuple[Array, Array]:
        """Ids and step counts; rows that were never made have none, and the episodes go on behind them."""
        shape = rows.reward.shape
        if made == shape[1]:
            return self._ids.label(rows.last, rows.valid)
        ids, counts = np.full(shape, NO_TRAJECTORY, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        if made:
            assert rows.valid is not None
            ids[:, :made], counts[:, :made] = self._ids.label(rows.last[:, :made], rows.valid[:, :made])
        return ids, counts

    def _reset(self, seeds: list[int] | None) -> None:
        self._stage.observation = self.host.reset_all(seeds)
        self._stage.due = ()
        everyone = range(self.host.spec.num_envs)
        self.policy.begin(everyone)
        self._rules.limit.restart(everyone)
        self._ids.begin()
        self._stale = False

    def _restart(self) -> None:
        self.host.rebuild()
        self.tally.restarts += 1
        self.next_life(self.life + 1)

    def _lose(self, made: int) -> None:
        self._stale = True
        self.tally.fragments_lost += 1
        self.tally.frames_discarded += made * self.host.spec.num_envs

    def _random_states(self) -> AbstractContextManager[None]:
        return nullcontext() if self._streams is None else self._streams.swapped()

    def _make_rules(self) -> Rules:
        limit = StepLimit([self.episodes.max_frames] * self.host.spec.num_envs)
        limit.restart(range(self.host.spec.num_envs))
        return Rules(limit, go_on, self._forgive if self.faults.on_env_error == "reset" else _never_forgive)

    def _forgive(self, env: int, error: Exception) -> None:  # noqa: ARG002  the loop tells what it forgives
        self.tally.env_errors += 1

    def _noted(self, raised: EnvRaised) -> Exception:
        seed = self.host.seed_of(raised.env)
        raised.cause.add_note(f"raised by env {raised.env} (seed {seed}) of {self._who()}")
        return raised.cause

    def _who(self) -> str:
        return f"worker {self.place.worker} (life {self.life}, policy version {self.version})"


def _never_forgive(env: int, error: Exception) -> None:
    raise EnvRaised(env, error)


def _require_finite_rows(observation: Sequence[Leaf], rows: Rows) -> None:
    for leaf, array in zip(observation, rows.observation, strict=True):
        require_finite(f"observation {leaf.key!r}", array)
    for leaf, array in zip(observation, rows.next_observation, strict=True):
        require_finite(f"next observation {leaf.key!r}", array)
    require_finite("reward", rows.reward)
