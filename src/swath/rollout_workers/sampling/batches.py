"""From transitions to batches: a policy's rows by sub-env, episode, agent and time, in chunks of one version each.

A column is one gather of rows. Then chunks are numbered and post-processed: one by one where somebody looks at them,
else all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.batches.multi_agent import concat_samples
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.episode import Episode
from swath.rollout_workers.nests import object_array
from swath.rollout_workers.sampling.policy_rows import PolicyRows
from swath.rollout_workers.sampling.post_processor import (
    Chunk,
    Original,
    PostProcessor,
    add_estimates,
    as_learnt_from,
    estimator_of,
)
from swath.rollout_workers.sampling.slots import records_at

Info = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """Transitions of one policy, in order, and the batch that is made of them.

    Attributes:
        policy: whose they are.
        records: the transitions.
        starts: the first of each chunk.
        batch: not post-processed yet.
    """

    policy: PolicyRows
    records: Array
    starts: Array
    batch: SampleBatch

    @property
    def chunks(self) -> Iterable[tuple[int, int, SampleBatch]]:
        """Of each: the id of its episode, the place of its agent, its rows."""
        bounds, first = pairwise([*self.starts.tolist(), len(self.records)]), records_at(self.records, self.starts)
        whose = zip(first["episode"].tolist(), first["agent"].tolist(), bounds, strict=True)
        return ((episode, agent, self.batch[start:stop]) for episode, agent, (start, stop) in whose)


@dataclass(frozen=True)
class BatchMaker:
    """Makes batches of transitions.

    Attributes:
        post: has chunks post-processed.
        episodes: by id, those of which transitions are here.
        infos: what the envs said to the agents of these transitions when they ended.
        unrolls: numbers of chunks.
    """

    post: PostProcessor
    episodes: Mapping[int, Episode]
    infos: Callable[[Array], list[Info]]
    unrolls: Iterator[int]

    def make(self, policies: Sequence[PolicyRows], transitions: Array) -> dict[str, SampleBatch]:
        """The batches by policy id; a policy of which no row is left has none."""
        made, several = {}, len(policies) > 1
        taken = [self._rows(each, transitions, several=several) for each in policies]
        looked_at = [self.post.is_chunk_by_chunk(each.policy) for each in policies]
        originals = self._originals(taken) if any(looked_at) else {}
        for rows, one_by_one in zip(taken, looked_at, strict=True):
            if len(rows.records):
                whole = self._one_by_one(rows, originals) if one_by_one else _at_once(rows)
                if whole.count:
                    made[rows.policy.policy_id] = whole
        return made

    def _rows(self, policy: PolicyRows, transitions: Array, *, several: bool) -> Rows:
        own = transitions
        if several:
            own = records_at(own, np.flatnonzero(own["policy"] == policy.number))
        records = records_at(own, np.lexsort((own["agent"], own["episode"], own["env"])))  # in time already
        records, starts = self._trained(records, _chunk_starts(records))
        if not len(records):
            return Rows(policy, records, starts, SampleBatch())
        columns = self._columns(policy, records)
        numbers = [next(self.unrolls) for _ in starts]
        columns[ColumnNames.UNROLL_ID] = np.repeat(numbers, np.diff(starts, append=len(records)))
        return Rows(policy, records, starts, SampleBatch(columns, _num_grad_updates=policy.policy.num_grad_updates))

    def _trained(self, records: Array, starts: Array) -> tuple[Array, Array]:
        """Transitions and starts without the chunks whose last info says that they are not to be trained on."""
        lengths = np.diff(starts, append=len(records))
        last = records_at(records, starts + lengths - 1)
        keep = np.array([bool(info.get("training_enabled", True)) for info in self.infos(last)], np.bool_)
        if keep.all():
            return records, starts
        kept = lengths[keep]
        return records[np.repeat(keep, lengths)], np.cumsum(kept) - kept

    def _columns(self, policy: PolicyRows, records: Array) -> dict[str, Any]:
        kept, before = policy.wants.kept, records["before"]
        columns = {
            ColumnNames.OBS: policy.observed(records["acted"]),
            ColumnNames.NEXT_OBS: policy.observed(records["row"]),
            **policy.answered(records["acted"]),
            **policy.states(before),
        }
        plain = {
            ColumnNames.REWARDS: "reward",
            ColumnNames.TERMINATEDS: "terminated",
            ColumnNames.TRUNCATEDS: "truncated",
            ColumnNames.T: "t",
            ColumnNames.EPS_ID: "episode",
            ColumnNames.AGENT_INDEX: "agent",
            ColumnNames.POLICY_VERSION: "version",
        }
        optional = {ColumnNames.PREV_REWARDS: "paid", ColumnNames.ENV_ID: "env"}
        plain |= {name: field for name, field in optional.items() if name in kept}
        columns |= {name: np.ascontiguousarray(records[field]) for name, field in plain.items()}
        if ColumnNames.PREV_ACTIONS in kept:
            columns[ColumnNames.PREV_ACTIONS] = policy.actions_at(before)
        if ColumnNames.INFOS in kept:
            columns[ColumnNames.INFOS] = object_array(self.infos(records))
        if ColumnNames.AGENT_ID in kept:
            columns[ColumnNames.AGENT_ID] = object_array([self._agent(*each) for each in _whose(records)])
        return columns

    def _agent(self, episode: int, place: int) -> Any:
        return self.episodes[episode].get_agents()[place]

    def _one_by_one(self, rows: Rows, originals: Mapping[int, Mapping[Any, Original]]) -> SampleBatch:
        """The batch of chunks that are post-processed each for itself."""
        policy, made = rows.policy, []
        for episode, place, batch in rows.chunks:
            agent = self._agent(episode, place)
            chunk = Chunk(batch, policy.policy_id, policy.policy, agent, self.episodes[episode])
            others = {other: original for other, original in originals[episode].items() if other != agent}
            made.append(self.post.process(chunk, others))
        whole = concat_samples(made)
        assert isinstance(whole, SampleBatch)
        return as_learnt_from(policy.policy, whole, [chunk.count for chunk in made])

    def _originals(self, taken: Sequence[Rows]) -> dict[int, dict[Any, Original]]:
        """What each agent made in each episode, whatever versions acted."""
        found: dict[int, dict[Any, Original]] = {}
        for rows in taken:
            spans: dict[tuple[int, int], tuple[int, int]] = {}
            for row, who in enumerate(_whose(rows.records)):
                spans[who] = (spans.get(who, (row, row))[0], row + 1)
            for (episode, place), (start, stop) in spans.items():
                of_agent = (rows.policy.policy_id, rows.policy.policy, rows.batch[start:stop])
                found.setdefault(episode, {})[self._agent(episode, place)] = of_agent
        return found


def _at_once(rows: Rows) -> SampleBatch:
    policy, estimator = rows.policy.policy, estimator_of(rows.policy.policy)
    if estimator is not None:
        add_estimates(policy, rows.batch, rows.starts, estimator)
    return as_learnt_from(policy, rows.batch, np.diff(rows.starts, append=len(rows.records)).tolist())


def _whose(records: Array) -> list[tuple[int, int]]:
    """The episode and the place of the agent of each transition."""
    return list(zip(records["episode"].tolist(), records["agent"].tolist(), strict=True))


def _chunk_starts(records: Array) -> Array:
    """The first rows of chunks: of one agent, one episode and one version."""
    if not len(records):
        return np.empty(0, np.int64)
    changes = [records[name][1:] != records[name][:-1] for name in ("episode", "agent", "version")]
    return np.concatenate([[0], np.flatnonzero(np.logical_or.reduce(changes)) + 1])
