"""What is done with rows before they are a batch: numbered by chunk, post-processed, put into sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from swath.errors import warn
from swath.rollout.hosts.base import EnvRaised
from swath.rollout_workers.batches.joining import concat_samples
from swath.rollout_workers.batches.names import ColumnNames
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.episode import LONE_AGENT
from swath.rollout_workers.metrics import MetricsLog, RolloutMetrics, SamplerCounts
from swath.rollout_workers.sampling.asking import Wants
from swath.rollout_workers.sampling.chunks import UnrollIds, is_trained, number_chunks
from swath.rollout_workers.sampling.columns import Taken, columns_of
from swath.rollout_workers.sampling.post_processor import (
    Chunk,
    PostProcessor,
    add_estimates,
    as_learnt_from,
    estimator_of,
)

LONG = 5_000


class LongEpisodes:
    """Warns, once per sub-env, of episodes that are waited for in vain; `batch_mode="complete_episodes"` waits."""

    def __init__(self) -> None:
        self._warned: set[int] = set()

    def note(self, env: int, steps: int, wanted: int) -> None:
        """The episode of a sub-env has lasted so many steps, where batches of `wanted` steps per sub-env are asked."""
        if steps > max(LONG, 10 * wanted) and env not in self._warned:
            self._warned.add(env)
            warn(
                f"the episode of sub-env {env} has lasted {steps:,} steps, and none of them is handed out before it "
                "ends; limit episodes (gymnasium's TimeLimit), or set batch_mode='truncate_episodes'"
            )


def noted(raised: EnvRaised, seed: int | None, step: int | None) -> Exception:
    """What a sub-env raised, with a note of where: at a step of its episode, or at a reset."""
    where = "a reset" if step is None else f"step {step} of its episode, counted from 0"
    raised.cause.add_note(f"raised by sub-env {raised.env} (last seed {seed}) in {where}")
    return raised.cause


def count_failures(raised: Sequence[tuple[int, Exception]], counts: SamplerCounts, log: MetricsLog) -> None:
    """Note which sub-envs have raised."""
    counts.faulty += len(raised)
    log.add(RolloutMetrics(episode_faulty=True, env_index=env, error=repr(error)) for env, error in raised)


@dataclass(frozen=True)
class Finisher:
    """Makes batches of rows.

    Attributes:
        policy_id: whose rows they are.
        policy: that policy.
        wants: which optional columns its batches have.
        template: a nest of the structure of observations.
        unrolls: numbers chunks.
        post: has chunks post-processed.
        episode: by trajectory id, where chunks are looked at one by one.
    """

    policy_id: str
    policy: Any
    wants: Wants
    template: Any
    unrolls: UnrollIds
    post: PostProcessor
    episode: Callable[[int], Any] | None = None

    def finish(self, taken: Taken) -> SampleBatch:
        """The batch of these rows, of which there is at least one."""
        columns = columns_of(taken, self.template, self.wants.kept)
        starts = number_chunks(columns, self.unrolls)
        batch = SampleBatch(columns, _num_grad_updates=self.policy.num_grad_updates)
        trained = [is_trained(taken.info_at(int(stop) - 1)) for stop in (*starts[1:], taken.count)]
        if self.post.is_chunk_by_chunk(self.policy) or not all(trained):
            return self._one_by_one(batch, [int(start) for start in starts], trained)
        estimator = estimator_of(self.policy)
        if estimator is not None:
            add_estimates(self.policy, batch, starts, estimator)
        lengths = [int(stop - start) for start, stop in pairwise([*starts, taken.count])]
        return as_learnt_from(self.policy, batch, lengths)

    def _one_by_one(self, batch: SampleBatch, starts: list[int], trained: Sequence[bool]) -> SampleBatch:
        bounds = pairwise([*starts, batch.count])
        chunks = [self._processed(batch[start:stop]) for (start, stop), use in zip(bounds, trained, strict=True) if use]
        if not chunks:
            return SampleBatch()
        whole = concat_samples(chunks)
        assert isinstance(whole, SampleBatch)
        return as_learnt_from(self.policy, whole, [chunk.count for chunk in chunks])

    def _processed(self, rows: SampleBatch) -> SampleBatch:
        episode = None if self.episode is None else self.episode(int(rows[ColumnNames.EPS_ID][0]))
        return self.post.process(Chunk(rows, self.policy_id, self.policy, LONE_AGENT, episode), {})
