"""Check that batches of a `WorkerSet` are whole while its workers are killed, and made with the newest weights.

    python benchmarks/rollout_worker_chaos.py [--backend process ray] [--agents 1 2] [--seconds 60] [--quick]

Four workers with four counting envs each, or two of two agents; envs and kills are as in chaos.py, with a SIGKILL
every five seconds. Weights are new before every batch, filters are shared every second, and with two agents there is a
new policy every four seconds, with a mapping that lets an agent act by it. Policies write the number of their weights
into their actions, filters write how much they have seen into the observations: so each row shows whether a worker that
replaces another had all of it from its first row on. Ends with 1 if a frame is missing, twice there, of a broken
fragment or made with what was old.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from chaos import COUNTING, ENVS, STEPS, WORKERS, Diary, Drawn, Killer, Toiling, recovered, set_up
from rounds import claim, ended, parser, verdict
from swath import AlgorithmConfig, WorkerSet
from swath.rollout.episodes.statistics import LIFE_BITS, WORKER_BITS
from swath.rollout_workers import MeanStdFilter, Policy, make_multi_agent

TURN_S, KILL_AT_S, KILL_EVERY_S, QUIET_S = 10.0, 2.0, 5.0, 5.0
FILTERS_EVERY_S, POLICY_EVERY_S = 1.0, 4.0
ANY_NUMBER = replace(COUNTING, action_space=gym.spaces.Discrete(2**31))
COLUMNS = ("obs", "actions", "eps_id", "policy_version")


class Numbered(Policy):
    """Acts by its weight, a number."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.number = 0

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return the number for every row."""
        return np.full(len(obs_batch), self.number), [], {}

    def get_weights(self) -> dict[str, Any]:
        """Return the number."""
        return {"number": np.array([self.number])}

    def set_weights(self, weights: Any) -> None:
        """Act by another number."""
        self.number = int(weights["number"][0])


class CountingFilter(MeanStdFilter):
    """Replaces the last number of observations by the count of observations so far."""

    def __init__(self, shape: Any, *_: Any) -> None:
        super().__init__(shape, demean=False, destd=False, clip=None)

    def __call__(self, x: Any, update: bool = True) -> Any:
        """Return a copy of the observations."""
        numbered = np.array(super().__call__(x, update))
        numbered[..., -1] = self.rs.n
        return numbered


class RoomForOne(gym.ObservationWrapper[Any, Any, Any]):
    """Adds a number to the observations, for the filter to write over."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        low, high = np.append(env.observation_space.low, 0), np.append(env.observation_space.high, np.inf)
        self.observation_space = gym.spaces.Box(np.float32(low), np.float32(high), dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        """Return the observation with one more number."""
        return np.append(observation, np.float32(0))


@dataclass(frozen=True)
class SubEnvs:
    """Builds the sub-envs of all workers; each worker has the same counting envs in every life."""

    diary: Diary
    agents: int

    def __call__(self, context: Any) -> Any:
        """Build the sub-env of a context."""
        worker, first = context.worker_index, context.vector_index * self.agents
        numbers = range(first, first + self.agents)
        envs = iter([RoomForOne(Toiling(worker, number, self.diary, counting=ANY_NUMBER)) for number in numbers])
        return next(envs) if self.agents == 1 else make_multi_agent(lambda _: next(envs))({"num_agents": self.agents})


@dataclass(frozen=True)
class Mapping:
    """Agents and policies take turns: agents are called 0 and 1, a lone one has a name."""

    ids: tuple[str, ...]

    def __call__(self, agent: Any, *_: Any, **__: Any) -> str:
        """Return the policy of an agent."""
        return self.ids[agent % len(self.ids) if isinstance(agent, int) else 0]


def last_before(at: float, log: list[tuple[float, Any]], otherwise: Any = None) -> Any:
    """Return the last value in a log before a moment."""
    return next((value for when, value in reversed(log) if when < at), otherwise)


@dataclass
class Training:
    """A set whose weights, filters and policies change all the time, and its rows.

    Attributes:
        workers: the set.
        agents: of a sub-env.
        ids: of present and earlier policies.
        versions, filters, mappings: published values, with the time.
        numbers: of the weights, by version.
        rows: a batch's columns of a policy, with its id and the number of the batch.
        arrived: arrival times of batches.
    """

    workers: WorkerSet
    agents: int
    ids: list[str]
    versions: list[tuple[float, Any]] = field(default_factory=list)
    filters: list[tuple[float, Any]] = field(default_factory=list)
    mappings: list[tuple[float, Any]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    rows: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)

    def draw_one(self) -> int:
        """Add a policy and share filters if it is time; publish, sample, and keep the rows."""
        now = time.monotonic()
        if self.agents > 1 and now - last_time(self.mappings) >= POLICY_EVERY_S:
            self.ids.append(f"policy_{len(self.ids)}")
            newest = tuple(self.ids[-2:])
            self.workers.add_policy(self.ids[-1], Numbered, policy_mapping_fn=Mapping(newest))
            self.mappings.append((time.monotonic(), newest))
        if now - last_time(self.filters) >= FILTERS_EVERY_S:
            self.workers.sync_filters()
            counts = {name: own_filter.rs.n for name, own_filter in self.workers.local_worker().filters.items()}
            self.filters.append((time.monotonic(), counts))
        number = len(self.numbers) + 1
        for policy in self.workers.local_worker().policy_map.values():
            policy.set_weights({"number": [number]})
        version = self.workers.sync_weights()
        self.numbers[version] = number
        self.versions.append((time.monotonic(), version))
        batch = self.workers.sample()
        frames = WORKERS * ENVS // self.agents * STEPS
        assert batch.env_steps() == frames, f"a batch has {batch.env_steps()} frames, not {frames}"
        for name, rows in batch.as_multi_agent().policy_batches.items():
            self.rows.append((name, len(self.arrived), {column: np.array(rows[column]) for column in COLUMNS}))
        self.arrived.append(time.monotonic())
        return frames

    def check(self, killed: dict[tuple[int, int], float]) -> int:
        """Return the number of lives that replaced others; raise an `AssertionError` if a row is wrong.

        `killed` has the time at which the life before a life was killed.
        """
        names, batches, kept = zip(*self.rows, strict=True)
        sizes = [len(columns["actions"]) for columns in kept]
        obs, actions, ids, versions = (np.concatenate([columns[column] for columns in kept]) for column in COLUMNS)
        policy, batch = np.repeat(names, sizes), np.repeat(batches, sizes)
        mark, n_filtered = obs[:, :3].astype(np.int64), obs[:, 3]
        order = {version: place for place, (_, version) in enumerate(self.versions)}
        late = batch - np.array([order[version] for version in versions.tolist()])
        assert ((late == 0) | (late == 1)).all(), "a batch has weights older than a late fragment may have"
        assert (actions == [self.numbers[version] for version in versions.tolist()]).all(), "other weights acted"
        lives = np.stack([ids >> WORKER_BITS, (ids >> LIFE_BITS) & (2 ** (WORKER_BITS - LIFE_BITS) - 1)], axis=-1)
        for life in map(tuple, np.unique(lives, axis=0).tolist()):
            rows = np.flatnonzero((lives == life).all(axis=1))
            rows = rows[np.lexsort(mark[rows].T[::-1])]
            check_frames(life, mark[rows], batch[rows], self.agents)
            if life[1]:
                first_rows = rows[(mark[rows, 1:] == 0).all(axis=1)]
                self.check_first(
                    killed[life],
                    policy[first_rows],
                    batch[first_rows],
                    mark[first_rows],
                    n_filtered[first_rows],
                    versions[first_rows],
                )
        return sum(life > 0 for _, life in np.unique(lives, axis=0))

    def check_first(self, killed: float, policy: Any, batch: Any, mark: Any, n_filtered: Any, versions: Any) -> None:
        """Check that the first rows of a replacement are made with everything published before."""
        assert (versions >= last_before(killed, self.versions)).all(), "a new life begins with old weights"
        counts = last_before(killed, self.filters, {})
        assert all(n > counts.get(name, 0) for name, n in zip(policy, n_filtered, strict=True)), (
            "it begins with an old filter"
        )
        end = max(self.arrived[number] for number in batch)
        allowed = [last_before(killed, self.mappings), *(ids for at, ids in self.mappings if killed <= at <= end)]
        for name, (env, *_) in zip(policy, mark, strict=True):
            assert name in {ids[env % self.agents] for ids in allowed}, f"it begins with the policy {name!r}"


def last_time(log: list[tuple[float, Any]]) -> float:
    """Return the time of the last value in a log."""
    return log[-1][0] if log else 0.0


def check_frames(life: tuple[int, int], mark: Any, batch: Any, agents: int) -> None:
    """Check the sorted rows of a life: every frame once, in whole fragments, from a reset on."""
    wanted = list(range(life[0] * ENVS, (life[0] + 1) * ENVS))
    assert np.unique(mark[:, 0]).tolist() == wanted, f"{life} has the envs {np.unique(mark[:, 0])}"
    for (env, episode, step), following in pairwise(mark.tolist()):
        allowed = ([env, episode, step + 1], [env, episode + 1, 0], [env + 1, 0, 0])
        assert following in allowed, f"{life}: after {(env, episode, step)} comes {following}"
    steps = np.unique(np.column_stack([batch, (mark[:, 0] - wanted[0]) // agents, mark[:, 1:]]), axis=0)
    assert not (np.unique(steps[:, :2], axis=0, return_counts=True)[1] % STEPS).any(), f"{life}: a broken fragment"


@dataclass(frozen=True)
class Scene:
    """A backend, a number of agents, and a duration."""

    backend: str
    agents: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.backend}, {self.agents} agent{'s' * (self.agents > 1)}"

    @contextmanager
    def training(self) -> Iterator[tuple[Training, Drawn, Diary]]:
        """Yield a running training, its draws and its workers' diary."""
        ids = [f"policy_{agent}" for agent in range(self.agents)] if self.agents > 1 else ["default_policy"]
        config = (
            AlgorithmConfig()
            .env_runners(num_env_runners=WORKERS, num_envs_per_env_runner=ENVS // self.agents)
            .env_runners(rollout_fragment_length=STEPS, observation_filter=CountingFilter)
            .fault_tolerance(delay_between_env_runner_restarts_s=0.1)
            .multi_agent(policies=set(ids), policy_mapping_fn=Mapping(tuple(ids)))
            .debugging(seed=0)
        )
        with ExitStack() as stack:
            diary = Diary(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            envs = SubEnvs(diary, self.agents)
            workers = WorkerSet(env_creator=envs, default_policy_class=Numbered, config=config, backend=self.backend)
            training = Training(stack.enter_context(workers), self.agents, ids)
            training.mappings.append((time.monotonic(), tuple(ids)))
            drawn = Drawn(training.draw_one)
            drawn.draw_until(lambda: len(diary.lines()) == WORKERS)
            yield training, drawn, diary


def chaos(scene: Scene) -> bool:
    """Kill a worker every five seconds; return whether the targets are reached."""
    print(f"\n{scene}: a kill every five seconds", flush=True)
    with scene.training() as (ours, drawn, diary), scene.training() as (undisturbed, quiet, _):
        killer = Killer(diary)
        for _ in range(max(1, round(scene.seconds / TURN_S))):
            with killer.at_work(KILL_AT_S, KILL_EVERY_S):
                drawn.draw_for(TURN_S)
            quiet.draw_for(QUIET_S)
        drawn.draw_until(lambda: len(killer.recoveries) == len(killer.killed))
        restarts, recoveries = ours.workers.num_remote_worker_restarts(), killer.recoveries
        kinds = Counter(event.kind for event in ours.workers.events())
    lives, killed = Counter[int](), {}
    for kill in killer.killed:
        lives[kill.worker] += 1
        killed[kill.worker, lives[kill.worker]] = kill.at
    undisturbed.check({})
    replaced = ours.check(killed)
    counted = kinds["died"] == kinds["replaced"] == restarts == len(killed)
    note = f"{drawn.rate:,.0f} of {quiet.rate:,.0f} env steps/s"
    verdict(f"{scene}: share of the undisturbed rate", drawn.rate / quiet.rate, ".0%", note=note)
    note, frames = f"{len(killed)} kills, {restarts} restarts", f"{drawn.frames:,} frames, {replaced} new lives"
    return all(
        [
            recovered(scene, recoveries),
            claim(f"{scene}: each loss is reported", counted, note),
            claim(f"{scene}: frames whole, lives begin with the newest", replaced > 0, frames),
        ]
    )


def main() -> int:
    """Measure every backend with one agent and with two."""
    command_line = parser(__doc__)
    command_line.add_argument("--backend", nargs="+", default=["process", "ray"], choices=("process", "ray"))
    command_line.add_argument("--agents", nargs="+", type=int, default=[1, 2], choices=(1, 2))
    command_line.add_argument("--seconds", type=float, default=60.0)
    options = command_line.parse_args()
    set_up(options)
    seconds = 10 if options.quick else options.seconds
    return ended([chaos(Scene(at, agents, seconds)) for at in options.backend for agents in options.agents])


if __name__ == "__main__":
    sys.exit(main())
