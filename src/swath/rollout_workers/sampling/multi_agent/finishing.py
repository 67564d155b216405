"""What is done with the rows of all roles before they are a batch: numbered by chunk, post-processed, in sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from swath.rollout_workers.batches.joining import concat_samples
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.callbacks import Listener
from swath.rollout_workers.sampling.chunks import UnrollIds
from swath.rollout_workers.sampling.estimates import add_estimates
from swath.rollout_workers.sampling.finishing import chunk_by_chunk, estimator_of, overrides
from swath.rollout_workers.sampling.multi_agent.handing import Chunks
from swath.rollout_workers.sampling.multi_agent.role import Role
from swath.rollout_workers.sampling.multi_agent.seats import Play, Seat
from swath.rollout_workers.sampling.sequences import in_sequences

Originals: TypeAlias = dict[Any, tuple[str, Any, SampleBatch]]
"""Policy id, policy and rows by agent, of one episode, before they are post-processed."""


@dataclass(frozen=True)
class Finisher:
    """Makes batches of the rows of roles.

    Attributes:
        unrolls: numbers chunks.
        listeners: to be called with each chunk.
        worker: passed to them.
        policies: by id, passed to them.
    """

    unrolls: UnrollIds
    listeners: Sequence[Listener]
    worker: Any
    policies: Mapping[str, Any]

    def finish(self, taken: Mapping[Role, Chunks]) -> dict[str, SampleBatch]:
        """The batches by policy id; a policy of which no row is left has none."""
        raw = {role: self._numbered(role, chunks) for role, chunks in taken.items()}
        one_by_one = {role for role in raw if chunk_by_chunk(role.equipment.policy, self.listeners)}
        originals = _originals(taken, raw) if one_by_one else {}
        made = {}
        for role, batch in raw.items():
            chunks = taken[role]
            whole = self._each(role, chunks, batch, originals) if role in one_by_one else _at_once(role, chunks, batch)
            if whole.count:
                made[role.policy_id] = whole
        return made

    def _numbered(self, role: Role, chunks: Chunks) -> SampleBatch:
        chunks.columns[ColumnNames.UNROLL_ID] = np.repeat(self.unrolls.give(len(chunks.starts)), chunks.lengths)
        return SampleBatch(chunks.columns, _num_grad_updates=role.equipment.policy.num_grad_updates)

    def _each(self, role: Role, chunks: Chunks, batch: SampleBatch, originals: Mapping[Play, Originals]) -> SampleBatch:
        """Chunk by chunk."""
        bounds = pairwise([*chunks.starts.tolist(), batch.count])
        made = [
            self._processed(seat, batch[start:stop], originals[seat.play])
            for seat, (start, stop) in zip(chunks.seats, bounds, strict=True)
        ]
        whole = concat_samples(made)
        assert isinstance(whole, SampleBatch)
        return _in_sequences(role, whole, [chunk.count for chunk in made])

    def _processed(self, seat: Seat, chunk: SampleBatch, originals: Originals) -> SampleBatch:
        policy, episode = seat.role.equipment.policy, seat.play.episode
        others = {agent: original for agent, original in originals.items() if agent != seat.agent}
        made = policy.postprocess_trajectory(chunk, others, episode) if overrides(policy) else chunk
        if not isinstance(made, SampleBatch):
            raise TypeError(f"{type(policy).__name__}.postprocess_trajectory returned {made!r}; it must be the batch")
        for listener in self.listeners:
            listener(
                worker=self.worker,
                env_runner=self.worker,
                episode=episode,
                agent_id=seat.agent,
                policy_id=seat.role.policy_id,
                policies=self.policies,
                postprocessed_batch=made,
                original_batches={**others, seat.agent: (seat.role.policy_id, policy, chunk)},
            )
        return made


def _at_once(role: Role, chunks: Chunks, batch: SampleBatch) -> SampleBatch:
    policy = role.equipment.policy
    estimator = estimator_of(policy)
    if estimator is not None:
        add_estimates(policy, batch, chunks.starts, estimator)
    return _in_sequences(role, batch, chunks.lengths.tolist())


def _originals(taken: Mapping[Role, Chunks], raw: Mapping[Role, SampleBatch]) -> dict[Play, Originals]:
    """What each agent made in each episode, whatever versions acted."""
    found: dict[Play, Originals] = {}
    for role, batch in raw.items():
        chunks = taken[role]
        bounds = pairwise([*chunks.starts.tolist(), batch.count])
        spans: dict[Seat, tuple[int, int]] = {}
        for seat, (start, stop) in zip(chunks.seats, bounds, strict=True):
            spans[seat] = (spans.get(seat, (start, stop))[0], stop)
        for seat, (start, stop) in spans.items():
            of_agent = (role.policy_id, role.equipment.policy, batch[start:stop])
            found.setdefault(seat.play, {})[seat.agent] = of_agent
    return found


def _in_sequences(role: Role, batch: SampleBatch, lengths: Sequence[int]) -> SampleBatch:
    policy = role.equipment.policy
    if not policy.is_recurrent() or not batch.count:
        return batch
    return in_sequences(batch, lengths, policy.config["model"]["max_seq_len"])
