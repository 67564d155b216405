"""The seeds of a worker: of its envs' first resets, of envs made anew, of what it draws itself.

Worker 0 in training and in its first life gives its envs the root seed and those after it. All others come from
`swath.seeds`, evaluation and training apart, and none of them is one of worker 0's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from swath.rollout.seeding import PrivateStreams
from swath.seeds import Role, derive, derive_named

_PINNED = 2**16
"""How many seeds from the root on may be those of worker 0's envs."""

_EVALUATION = 2**15
"""The first env number of workers that evaluate."""

_MOST_LIVES = 2**5
_MOST_RENEWALS = 2**6
_ELSEWHERE = _MOST_LIVES * _MOST_RENEWALS


@dataclass(frozen=True)
class Seeds:
    """The seeds of one worker in one life.

    Attributes:
        root: the user's seed.
        worker: the worker's index.
        life: which of its lives, from 0.
        in_evaluation: whether it evaluates.
    """

    root: int
    worker: int = 0
    life: int = 0
    in_evaluation: bool = False

    @property
    def own(self) -> int:
        """The worker's own seed."""
        return self.root if self._is_pinned else self._of("global", self.worker)

    def first(self, num_envs: int) -> list[int]:
        """Of the first resets of its envs."""
        if self._is_pinned:
            return [self.root + env for env in range(num_envs)]
        return [self._of("env", self.worker * num_envs + env) for env in range(num_envs)]

    def renewed(self, env: int, num_envs: int, time: int) -> int:
        """Of the first reset of an env that was made anew for the so-manieth time, from 1."""
        rounds, turn = divmod(time, _MOST_RENEWALS)
        if rounds:
            return replace(self, root=derive_named(self.root, f"renewals from {rounds}")).renewed(env, num_envs, turn)
        return self._of("env", self.worker * num_envs + env, turn)

    def streams(self) -> PrivateStreams:
        """Random streams for what policies and the worker draw."""
        return PrivateStreams(self._of("policy", self.worker))

    @property
    def _is_pinned(self) -> bool:
        return self.worker == 0 and self.life == 0 and not self.in_evaluation

    def _of(self, role: Role, number: int, time: int = 0) -> int:
        if number >= _EVALUATION:
            raise ValueError(f"sub-env number {number} of all workers has no seed; {_EVALUATION:,} have one")
        rounds, life = divmod(self.life, _MOST_LIVES)
        root = derive_named(self.root, f"lives from {rounds}") if rounds else self.root
        env, index = number + _EVALUATION * self.in_evaluation, life + _MOST_LIVES * time
        seed = derive(root, role, env, index)
        if self.root <= seed < self.root + _PINNED:
            seed = derive(root, role, env, index + _ELSEWHERE)
        return seed
