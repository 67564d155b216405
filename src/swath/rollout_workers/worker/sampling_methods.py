"""A worker's methods for what it hands out: batches, and what there is to tell of them."""

from __future__ import annotations

from collections.abc import Iterator

from swath.rollout_workers.batches.multi_agent import MultiAgentBatch
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.config.checks import flag, optional
from swath.rollout_workers.metrics import MetricsLog, RolloutMetrics, SamplerCounts
from swath.rollout_workers.perf_stats import PerfStats
from swath.rollout_workers.worker.dataset import DatasetReader
from swath.rollout_workers.worker.learning import Batch
from swath.rollout_workers.worker.policy_methods import PolicyMethods


class SamplingMethods(PolicyMethods):
    """What a worker does to hand out batches.

    Attributes:
        last_batch: what `fake_sampler` hands out again; None before.
    """

    last_batch: Batch | None
    _laps: PerfStats
    _log: MetricsLog
    _reader: DatasetReader | None

    def sample(self, *, explore: bool | None = None, force_reset: bool = False) -> Batch:
        """A batch: fragments of all sub-envs one behind the other, or whole episodes.

        Args:
            explore: sample actions, or take the best; None: as `explore` in the settings of each policy says.
            force_reset: begin new episodes in all sub-envs first; the running ones are given up, and counted.

        Returns:
            A `SampleBatch` if `"default_policy"` is the only policy, and has rows; else a `MultiAgentBatch`.

        Raises:
            ValueError: the worker has neither envs nor a dataset; `explore` is neither yes nor no.
            Closed: it was stopped.
            Exception: what an env, a policy, a filter or a callback raised, as its own type with a note; the next call
                goes on.
        """
        self._require_open("sample")
        explore = optional(flag)("explore", explore)
        with self._drawing():
            if self.config.fake_sampler and self.last_batch is not None:
                return self.last_batch.copy()
            batch = self._sampled(explore, force_reset=force_reset)
        if self.config.fake_sampler:
            self.last_batch = batch
            return batch.copy()
        return batch

    def sample_with_count(self) -> tuple[Batch, int]:
        """`sample()`, and how many env steps its batch is from; as a Ray actor's task two references."""
        batch = self.sample()
        return batch, batch.env_steps()

    sample_with_count.__ray_num_returns__ = 2  # type: ignore[attr-defined]

    def get_metrics(self) -> list[RolloutMetrics]:
        """What there is to tell of episodes that ended since the last call."""
        return self._log.drain()

    @property
    def counters(self) -> dict[str, int]:
        """What was sampled, discarded and restarted."""
        counts = SamplerCounts() if self.envs is None else self.envs.counts
        return {
            "env_steps_sampled": counts.env_steps,
            "agent_steps_sampled": counts.agent_steps,
            "env_steps_discarded": counts.discarded,
            "episodes": counts.episodes,
            "episodes_faulty": counts.faulty,
            "sub_env_restarts": 0 if self.envs is None else self.envs.failures.n_restarts,
        }

    @property
    def total_rollout_fragment_length(self) -> int:
        """Steps of a fragment times sub-envs."""
        length = self.config.get_rollout_fragment_length(self.worker_index)
        return length * self.config.num_envs_per_env_runner

    def _sampled(self, explore: bool | None, *, force_reset: bool) -> Batch:
        if self._reader is not None:
            return self._completed_batch({DEFAULT_POLICY_ID: self._reader.next()}, None)
        if self.envs is None:
            raise ValueError(
                f"worker {self.worker_index} has no env to sample from; set create_env_on_local_worker=True or "
                "create_local_env_runner=True, or give an env_creator"
            )
        try:
            batch: Batch = self.envs.sample(
                self._completed_batch, self._book.version, explore=explore, force_reset=force_reset
            )
        except Exception as error:
            error.add_note(f"raised while worker {self.worker_index} sampled (policy version {self._book.version})")
            raise
        return batch

    def _completed_batch(self, batches: dict[str, SampleBatch], env_steps: int | None) -> Batch:
        """What is handed out, shown to callbacks."""
        n_steps = sum(batch.count for batch in batches.values()) if env_steps is None else env_steps
        whole: Batch = MultiAgentBatch(batches, n_steps)
        if set(batches) == set(self.policy_map) == {DEFAULT_POLICY_ID}:
            whole = MultiAgentBatch.wrap_as_needed(batches, n_steps)
        self.callbacks.on_sample_end(worker=self, env_runner=self, samples=whole)
        return whole

    def _batches(self) -> Iterator[Batch]:
        return iter(self.sample, None)  # not a generator, which would be over when `sample` has raised
