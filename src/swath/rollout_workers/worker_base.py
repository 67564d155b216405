"""What the parts of a `RolloutWorker` know of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from swath.errors import Closed
from swath.rollout.random_state import PrivateStreams
from swath.rollout_workers.callbacks import DefaultCallbacks
from swath.rollout_workers.config import AlgorithmConfig
from swath.rollout_workers.env_context import EnvContext
from swath.rollout_workers.parts.arguments import Arguments
from swath.rollout_workers.parts.envs import Envs
from swath.rollout_workers.parts.learning import Batch, Learning
from swath.rollout_workers.parts.policies import Policies
from swath.rollout_workers.parts.weights import WeightBook


class WorkerBase:
    """What a worker has.

    Attributes:
        config: its settings.
        callbacks: the user's.
        env_context: what its envs were told, but for their numbers.
        envs: its envs; None without.
        life: which of its lives; a set counts them.
    """

    config: AlgorithmConfig
    callbacks: DefaultCallbacks
    env_context: EnvContext
    envs: Envs | None
    life: int
    _arguments: Arguments
    _policies: Policies
    _book: WeightBook
    _learning: Learning
    _streams: PrivateStreams | None
    _closed: bool

    @property
    def worker_index(self) -> int:
        """0 is the local worker."""
        return self._arguments.worker_index

    @property
    def num_workers(self) -> int:
        """Remote workers of the set."""
        return self._arguments.num_workers

    @property
    def recreated_worker(self) -> bool:
        """Whether it replaces one that was lost."""
        return self._arguments.recreated_worker

    @property
    def env_creator(self) -> Any:
        """What makes its envs."""
        return self._arguments.env_creator

    @property
    def default_policy_class(self) -> type | None:
        """The class of policies whose spec has none."""
        return self._arguments.default_policy_class

    @property
    def policy_map(self) -> dict[str, Any]:
        """The policies by id."""
        return self._policies.map

    def sample(self, *, explore: bool | None = None, force_reset: bool = False) -> Batch:
        """A batch."""
        raise NotImplementedError

    def _require_open(self, what: str) -> None:
        """Raise `Closed` if the worker was stopped."""
        if self._closed:
            raise Closed(f"{what}() of worker {self.worker_index}, which was stopped; build another worker")

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """While the worker draws: from its own streams, if it is seeded."""
        if self._streams is None:
            yield
            return
        with self._streams.swapped():
            yield
