"""Episodes as objects while they run, for callbacks and policies that look at them; where nobody does, there are none.

created (before the reset) ─▶ begun (after it) ─▶ announced (before its first action) ─▶ stepped … ─▶ ended, or failed
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swath.rollout.loop import Step
from swath.rollout.spaces import Array
from swath.rollout_workers.callbacks import DefaultCallbacks, Listener, listeners
from swath.rollout_workers.episode import LONE_AGENT, Board, Episode, LoneTally

WATCHED = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end", "on_postprocess_trajectory")
"""What nobody can be told of without episodes."""


@dataclass(frozen=True)
class Scene:
    """What episodes and callbacks are told of the worker.

    Attributes:
        worker: itself.
        callbacks: the user's.
        policy_map: the policies by id.
        mapping: the mapping function of the moment.
        sub_env: an env by its number; None where there is no such object.
        base_env: the view of all.
    """

    worker: Any
    callbacks: DefaultCallbacks
    policy_map: Mapping[str, Any]
    mapping: Callable[[], Callable[..., str]]
    sub_env: Callable[[int], Any]
    base_env: Any

    @property
    def is_watched(self) -> bool:
        """Whether callbacks are called with episodes."""
        return any(listeners(self.callbacks, event) for event in WATCHED)

    def tell(self, listening: Sequence[Listener], env: int, episode: Any) -> None:
        """Call those who listen, with the episode of an env, or what was raised in its place."""
        for listener in listening:
            listener(
                episode=episode,
                worker=self.worker,
                env_runner=self.worker,
                base_env=self.base_env,
                env=self.sub_env(env),
                policies=self.policy_map,
                env_index=env,
            )


class Watch:
    """The episodes of B envs.

    Args:
        scene: what they are told of.
        num_envs: B.
        first_id: of the first episode; those that begin later have the next ones.
        info_of: gives what an env said with its latest observation.

    Attributes:
        board: their running sums.
    """

    def __init__(self, scene: Scene, num_envs: int, first_id: int, info_of: Callable[[int], Mapping[str, Any]]) -> None:
        self._scene = scene
        self.board = Board(num_envs)
        self._info_of = info_of
        self._next_id = first_id
        self._created: dict[int, Episode] = {}
        self._running: list[Episode | None] = [None] * num_envs
        self._begun: list[int] = []
        self._by_id: dict[int, Episode] = {}
        self._told = {event: listeners(scene.callbacks, event) for event in WATCHED}

    @property
    def episodes(self) -> list[Any]:
        """The running one of each env."""
        return self._running

    def episode(self, trajectory: int) -> Episode:
        """The one of this id, until `forget` is told that nobody asks for it any more."""
        return self._by_id[trajectory]

    def create(self, envs: Sequence[int]) -> None:
        """Episodes are about to begin in these envs."""
        for env in envs:
            if env not in self._created:
                self._created[env] = episode = self._made(env)
                self._tell("on_episode_created", env, episode)

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs, but for those in which one has begun already, or cannot begin yet."""
        begun = [env for env in envs if env in self._created]
        self._keep(begun)
        self.board.begin({env: self._info_of(env) for env in begun})
        for env in begun:
            episode = self._running[env] = self._created.pop(env)
            episode.tally = self.board.of(env)
            episode.has_begun = True
            episode.agent_index(LONE_AGENT)
            self._by_id[episode.episode_id] = episode
        self._begun += begun

    def announce(self) -> None:
        """The policy is about to be asked for the first steps of episodes that have begun."""
        while self._begun:
            env = self._begun.pop(0)
            self._tell("on_episode_start", env, self._running[env])

    def stepped(self, step: Step, reward: Array) -> None:
        """A step was made, with these rewards after clipping."""
        self.board.step(reward, step.reward, step.info, but=step.void)
        ended = step.ended.without(step.void) if step.void else step.ended
        self.board.end(ended)
        if self._told["on_episode_step"]:
            for env in range(len(self._running)):
                if env not in step.void:
                    self._tell("on_episode_step", env, self._running[env])
        for env, _, _ in ended:
            self._tell("on_episode_end", env, self._running[env])

    def failed(self, env: int, error: Exception) -> None:
        """An env raised."""
        self._tell("on_episode_end", env, error)

    def start_over(self, first_id: int) -> None:
        """All episodes are given up; the next one has this id."""
        self._created.clear()
        self._begun.clear()
        self._next_id = first_id

    def forget(self, but: Collection[int]) -> None:
        """Nobody will ask for episodes that are over, except those of these ids."""
        kept = {episode.episode_id for episode in self._running if episode is not None}.union(but)
        self._by_id = {trajectory: episode for trajectory, episode in self._by_id.items() if trajectory in kept}

    def _made(self, env: int) -> Episode:
        scene = self._scene
        episode = Episode(
            self._next_id,
            env,
            Board(1).of(0),
            policy_map=scene.policy_map,
            policy_mapping_fn=scene.mapping(),
            worker=scene.worker,
        )
        episode.has_begun = False
        self._next_id += 1
        return episode

    def _keep(self, envs: Sequence[int]) -> None:
        """Rows of the board begin anew: what they say of earlier episodes is kept with these."""
        for env in envs:
            episode = self._running[env]
            if episode is not None and isinstance(episode.tally, LoneTally):
                episode.tally.keep()

    def _tell(self, event: str, env: int, episode: Any) -> None:
        self._scene.tell(self._told[event], env, episode)
