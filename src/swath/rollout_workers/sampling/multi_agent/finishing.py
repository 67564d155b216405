"""What is done with the rows of all roles before they are a batch: numbered by chunk, post-processed, in sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from swath.rollout_workers.batches.joining import concat_samples
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.sampling.chunks import UnrollIds
from swath.rollout_workers.sampling.multi_agent.handing import Chunks
from swath.rollout_workers.sampling.multi_agent.role import Role
from swath.rollout_workers.sampling.multi_agent.seats import Play, Seat
from swath.rollout_workers.sampling.post_processor import (
    Chunk,
    Original,
    Originals,
    PostProcessor,
    add_estimates,
    as_learnt_from,
    estimator_of,
)


@dataclass(frozen=True)
class Finisher:
    """Makes batches of the rows of roles.

    Attributes:
        unrolls: numbers chunks.
        post: has chunks post-processed.
    """

    unrolls: UnrollIds
    post: PostProcessor

    def finish(self, taken: Mapping[Role, Chunks]) -> dict[str, SampleBatch]:
        """The batches by policy id; a policy of which no row is left has none."""
        raw = {role: self._numbered(role, chunks) for role, chunks in taken.items()}
        one_by_one = {role for role in raw if self.post.is_chunk_by_chunk(role.equipment.policy)}
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
        return as_learnt_from(role.equipment.policy, whole, [chunk.count for chunk in made])

    def _processed(self, seat: Seat, rows: SampleBatch, originals: Originals) -> SampleBatch:
        chunk = Chunk(rows, seat.role.policy_id, seat.role.equipment.policy, seat.agent, seat.play.episode)
        others = {agent: original for agent, original in originals.items() if agent != seat.agent}
        return self.post.process(chunk, others)


def _at_once(role: Role, chunks: Chunks, batch: SampleBatch) -> SampleBatch:
    policy = role.equipment.policy
    estimator = estimator_of(policy)
    if estimator is not None:
        add_estimates(policy, batch, chunks.starts, estimator)
    return as_learnt_from(policy, batch, chunks.lengths.tolist())


def _originals(taken: Mapping[Role, Chunks], raw: Mapping[Role, SampleBatch]) -> Mapping[Play, Originals]:
    """What each agent made in each episode, whatever versions acted."""
    found: dict[Play, dict[Any, Original]] = {}
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
