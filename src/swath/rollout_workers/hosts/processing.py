"""A host whose observations are those that policies see: preprocessed, and filtered.

Each observation is processed once: those of a step together, those of a reset with the envs that it is of. An env whose
observation is no member of its space has failed; where the filter raises, all envs of that step have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from swath.rollout.hosts.base import ArrayHost, EnvRaised, Transition
from swath.rollout.spaces import Leaves, plain_leaves
from swath.rollout_workers.filters.base import Filter
from swath.rollout_workers.nests import leaves_of, template_of
from swath.rollout_workers.perf_stats import PerfStats
from swath.rollout_workers.preprocessors import Preprocessor


class ProcessingHost:
    """An array host with processed observations.

    Args:
        inner: the envs.
        preprocessor: makes processed observations of raw leaves.
        current_filter: gives the policy's current filter.
        perf: times the steps.
    """

    def __init__(
        self, inner: ArrayHost, preprocessor: Preprocessor, current_filter: Callable[[], Filter], perf: PerfStats
    ) -> None:
        self._inner = inner
        self.info_of, self.seed_of, self.render = inner.info_of, inner.seed_of, inner.render
        self.rebuild, self.retire, self.close = inner.rebuild, inner.retire, inner.close
        space = preprocessor.observation_space
        self.spec = replace(inner.spec, observation=plain_leaves(space, "observation"))
        self._preprocessor = preprocessor
        self._filter = current_filter
        self._template = template_of(space)
        self._everyone = list(range(inner.spec.num_envs))
        self._raw, self._last = blank(inner), blank(self)
        self._perf = perf

    @property
    def env(self) -> Any:
        """The live env object."""
        return self._inner.env

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env."""
        self._raw = self._inner.reset_all(seeds)
        return self._begun(self._everyone, self._last)

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; of observations only theirs are processed."""
        raw = self._inner.reset(envs, self._raw, seeds)
        if raw is self._raw:
            return onto
        self._raw = raw
        return self._begun(list(envs), onto)

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Advance every env; rows of envs that failed are those of the step before."""
        moved = self._inner.step(action, only)
        self._perf.lap("env_wait")
        self._raw, failed, good = moved.observation or self._raw, dict(moved.failed), self._everyone
        if failed:
            good = [env for env in good if env not in failed] if self.spec.alone else []
        failed |= self._process(good, self._last)
        moved.observation, moved.failed = self._last, list(failed.items())
        self._perf.lap("raw_obs_processing")
        return moved

    def _begun(self, envs: list[int], onto: Leaves) -> Leaves:
        for env, error in self._process(envs, onto).items():
            raise EnvRaised(env, error) from error
        return self._last

    def _process(self, envs: list[int], onto: Leaves) -> dict[int, Exception]:
        """Put the processed observations of these envs in the place of others; who failed by it, and why."""
        strays = self._preprocessor.strays(self._rows(envs)) if envs else {}
        failed: dict[int, Exception] = {envs[row]: error for row, error in strays.items()}
        good = [env for env in envs if env not in failed] if failed else envs
        if good and (self.spec.alone or not failed):
            try:
                self._last = self._filtered(good, onto)
            except Exception as error:  # noqa: BLE001  of the envs that it fails for
                failed |= dict.fromkeys(good, error)
        return failed

    def _filtered(self, envs: list[int], onto: Leaves) -> Leaves:
        seen = self._preprocessor.transform_members(self._rows(envs))
        try:
            leaves = leaves_of(self._filter()(seen), self._template)
        except Exception as error:
            error.add_note("raised by the observation filter")
            raise
        if len(envs) == len(self._everyone):
            return leaves
        fresh = [np.array(leaf) for leaf in onto]
        for leaf, rows in zip(fresh, leaves, strict=True):
            leaf[envs] = rows
        return fresh

    def _rows(self, envs: list[int]) -> Leaves:
        return self._raw if len(envs) == len(self._everyone) else [leaf[envs] for leaf in self._raw]


def blank(host: ArrayHost) -> Leaves:
    """Leaves of zeros, onto which the first reset of all envs is written."""
    n = host.spec.num_envs
    return [np.zeros((n, *leaf.shape), dtype=leaf.dtype) for leaf in host.spec.observation]
