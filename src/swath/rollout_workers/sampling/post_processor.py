"""What a policy makes of its own rows: chunk by chunk, shown to listeners, or of all at once where that is the same.

chunk ─▶ policy.postprocess_trajectory ─▶ listeners ─▶ its rows in the batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from swath.rollout_workers.advantages import Estimator
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.callbacks import Listener
from swath.rollout_workers.policy import Policy

Original: TypeAlias = tuple[str, Any, SampleBatch]
"""Policy id, policy, and its rows before they are post-processed."""

Originals: TypeAlias = Mapping[Any, Original]
"""By agent, of one episode."""

_METHOD = "postprocess_trajectory"
_SHIPPED = "swath.rollout_workers.policies."


@dataclass(frozen=True)
class Chunk:
    """The rows of one agent in one episode that one version of its policy made.

    Attributes:
        rows: the rows.
        policy_id: whose they are.
        policy: that policy.
        agent: who acted.
        episode: for listeners, and policies that look at it.
    """

    rows: SampleBatch
    policy_id: str
    policy: Any
    agent: Any
    episode: Any


@dataclass(frozen=True)
class PostProcessor:
    """Has policies post-process their chunks.

    Attributes:
        listeners: called with each chunk.
        worker: told to them.
        policies: by id, told to them.
    """

    listeners: Sequence[Listener]
    worker: Any
    policies: Mapping[str, Any]

    def is_chunk_by_chunk(self, policy: Any) -> bool:
        """Whether the chunks of a policy are to be looked at one by one."""
        return bool(self.listeners) or (_overrides(policy) and estimator_of(policy) is None)

    def process(self, chunk: Chunk, others: Originals) -> SampleBatch:
        """What is made of a chunk.

        Args:
            chunk: as it was made.
            others: what the other agents made in the episode.

        Raises:
            TypeError: the policy returned something else than a batch.
            Exception: what the policy or a listener raised.
        """
        made = chunk.rows
        if _overrides(chunk.policy):
            made = chunk.policy.postprocess_trajectory(chunk.rows, dict(others), chunk.episode)
        if not isinstance(made, SampleBatch):
            raise TypeError(f"{type(chunk.policy).__name__}.{_METHOD} returned {made!r}; it must return the batch")
        for listener in self.listeners:
            listener(
                worker=self.worker,
                env_runner=self.worker,
                episode=chunk.episode,
                agent_id=chunk.agent,
                policy_id=chunk.policy_id,
                policies=self.policies,
                postprocessed_batch=made,
                original_batches={**others, chunk.agent: (chunk.policy_id, chunk.policy, chunk.rows)},
            )
        return made


def estimator_of(policy: Any) -> Estimator | None:
    """The advantages that a policy adds, if it is one that is shipped and adds nothing else."""
    shipped = _definer(policy).__module__.startswith(_SHIPPED)
    found: Estimator | None = getattr(policy, "estimator", None)
    return found if shipped and _overrides(policy) else None


def _overrides(policy: Any) -> bool:
    """Whether a policy post-processes its rows."""
    return _definer(policy) is not Policy


def _definer(policy: Any) -> type:
    """The class whose `postprocess_trajectory` it is."""
    return next(kind for kind in type(policy).__mro__ if _METHOD in vars(kind))
