"""Workers of a `WorkerSet` are killed while it samples: batches must be whole all the same, and made with the newest.

    python benchmarks/rollout_worker_chaos.py [--backend process ray] [--agents 1 2] [--seconds 60] [--seed 0]

Four workers with four counting envs each, or two of two agents; a step of an env takes 60 µs of CPU, a fragment is 64
steps. For a minute: SIGKILL for a random worker every five seconds. A set that nobody disturbs takes turns with it,
five seconds after every ten. Weights are new before every batch, filters are shared every second, and with two agents
there is a new policy every four seconds, with a mapping function that has an agent act by it. The policies write the
number of their weights into their actions, the filters write how much they have seen into the observations: so it shows
that a worker that replaces another has all of it from its first row on. Replacements wait for 0.1 s at first; as many
are made as are needed. Ends with 1 if a frame is missing, twice there, of a broken fragment or made with what was old.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos_stage import say_recovery, set_up
from chaos_toys import Diary, Killer
from figures import claim, ended, verdict
from rollout_worker_chaos_check import Ledger, Said
from rollout_worker_chaos_course import Course
from rollout_worker_chaos_toys import Mapping, SubEnvs
from swath import AlgorithmConfig, WorkerSet
from swath.testing.telling import Telling, TellingFilter

WORKERS, STEPS = 4, 64
TURN_S, KILL_AT_S, KILL_EVERY_S, QUIET_S = 10.0, 2.0, 5.0, 5.0


@dataclass(frozen=True)
class Scene:
    """Where, and how."""

    backend: str
    agents: int
    seconds: float
    seed: int

    def __str__(self) -> str:
        return f"{self.backend}, {self.agents} agent{'s' * (self.agents > 1)}"

    @contextmanager
    def course(self) -> Iterator[tuple[Course, Diary]]:
        """One that has given its first batches, and its workers' diary."""
        with ExitStack() as stack:
            diary = Diary(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            envs = SubEnvs(diary, self.agents)
            policies = [f"policy_{agent}" for agent in range(self.agents)] if self.agents > 1 else ["default_policy"]
            workers = stack.enter_context(
                WorkerSet(
                    env_creator=envs,
                    default_policy_class=Telling,
                    config=config_for(envs, policies),
                    backend=self.backend,
                )
            )
            course = Course(workers, Ledger(WORKERS * envs.number * STEPS, self.agents))
            course.ledger.told.mappings.append(Said(time.monotonic(), tuple(policies)))
            if self.agents > 1:
                course.policies, course.due["policy"] = policies, 0.0
            course.draw(lambda: len(diary.lines()) == WORKERS)
            yield course, diary


def config_for(envs: SubEnvs, policies: list[str]) -> AlgorithmConfig:
    """Replaced at once, or nearly, however often."""
    return (
        AlgorithmConfig()
        .env_runners(num_env_runners=WORKERS, num_envs_per_env_runner=envs.number)
        .env_runners(rollout_fragment_length=STEPS, observation_filter=TellingFilter)
        .fault_tolerance(delay_between_env_runner_restarts_s=0.1)
        .multi_agent(policies=set(policies), policy_mapping_fn=Mapping(tuple(policies)))
        .debugging(seed=0)
    )


def chaos(scene: Scene) -> bool:
    """A kill every five seconds; whether all is as it should be."""
    print(f"\n{scene}: a kill every five seconds", flush=True)
    with scene.course() as (course, diary), scene.course() as (quiet, _):
        killer = Killer(diary, scene.seed)
        for _ in range(max(1, round(scene.seconds / TURN_S))):
            with killer.at_work(KILL_AT_S, KILL_EVERY_S):
                course.draw_for(TURN_S)
            quiet.draw_for(QUIET_S)
        course.draw(lambda: len(killer.recoveries) == len(killer.killed))
        restarts, events = course.workers.num_remote_worker_restarts(), course.workers.events()
        recoveries = killer.recoveries
    quiet.ledger.check(STEPS, {})
    returned = course.ledger.check(STEPS, beginnings(killer))
    say(scene, course, quiet, recoveries)
    kinds = Counter(event.kind for event in events)
    told = kinds["died"] == kinds["replaced"] == restarts == len(killer.killed)
    note = f"{len(killer.killed)} kills, {restarts} restarts, {kinds['discarded']} fragments discarded"
    frames = f"{course.ledger.frames:,} frames, {returned} lives that replaced others"
    return all(
        [
            claim(f"{scene}: each loss is told of", told, note),
            claim(f"{scene}: frames whole, lives begin with the newest", returned > 0, frames),
        ]
    )


def beginnings(killer: Killer) -> dict[tuple[int, int], float]:
    """When the life before a life was killed, by worker and life."""
    lives: Counter[int] = Counter()
    found = {}
    for one in killer.killed:
        lives[one.worker] += 1
        found[one.worker, lives[one.worker]] = one.at
    return found


def say(scene: Scene, course: Course, quiet: Course, recoveries: list[tuple[float, float]]) -> None:
    """How fast it was, and how soon the next lives were there."""
    note = f"{course.rate:,.0f} of {quiet.rate:,.0f} env steps/s"
    verdict(f"{scene}: share of the undisturbed rate", course.rate / quiet.rate, ".0%", note=note)
    say_recovery(scene, recoveries)


def main() -> int:
    """Every backend, one agent and two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", default=["process", "ray"], choices=("process", "ray"))
    parser.add_argument("--agents", nargs="+", type=int, default=[1, 2], choices=(1, 2))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    set_up(asked.backend, 2 * WORKERS)
    scenes = [Scene(place, agents, asked.seconds, asked.seed) for place in asked.backend for agents in asked.agents]
    return ended([chaos(scene) for scene in scenes])


if __name__ == "__main__":
    sys.exit(main())
