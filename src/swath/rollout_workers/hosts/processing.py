"""A host whose observations are those that policies see: preprocessed, and filtered.

Each observation is processed once: those of a step together, those of a reset with the envs that it is of. An env whose
observation is no member of its space has failed; where the filter raises, all envs of that step have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np

from swath.rollout.hosts.base import ArrayHost, EnvRaised, Transition
from swath.rollout.spaces import Leaves, plain_leaves
from swath.rollout_workers.filters.base import Filter, NoFilter
from swath.rollout_workers.hosts.wrapping import WrappedHost
from swath.rollout_workers.nests import leaves_of, template_of
from swath.rollout_workers.perf_stats import PerfStats
from swath.rollout_workers.preprocessors import NoPreprocessor, Preprocessor


class ProcessingHost(WrappedHost):
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
        super().__init__(inner)
        space = preprocessor.observation_space
        self.spec = replace(inner.spec, observation=plain_leaves(space, "observation"))
        self._preprocessor = preprocessor
        self._filter = current_filter
        self._template = template_of(space)
        self._everyone = list(range(inner.spec.num_envs))
        self._raw, self._last = blank(inner), blank(self)
        self._perf = perf

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env."""
        self._raw = self.inner.reset_all(seeds)
        return self._begun(self._everyone, self._last)

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; of observations only theirs are processed."""
        raw = self.inner.reset(envs, self._raw, seeds)
        if raw is self._raw:
            return onto
        self._raw = raw
        return self._begun(list(envs), onto)

    def step(self, action: Leaves) -> Transition:
        """Advance every env; rows of envs that failed are those of the step before."""
        moved = self.inner.step(action)
        self._perf.lap("env_wait")
        self._raw = moved.observation or self._raw
        failed = dict(moved.failed)
        failed |= self._strays([env for env in self._everyone if env not in failed])
        good = [env for env in self._everyone if env not in failed] if failed else self._everyone
        if failed and not self.spec.alone:
            good = []
        try:
            self._last = self._processed(good, self._last)
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            failed |= dict.fromkeys(good, error)
        if failed and not self.spec.alone:
            first = next(iter(failed.values()))
            failed |= {env: first for env in self._everyone if env not in failed}
        moved.observation = self._last
        moved.failed = sorted(failed.items(), key=itemgetter(0)) if self.spec.alone else list(failed.items())
        self._perf.lap("raw_obs_processing")
        return moved

    def _begun(self, envs: list[int], onto: Leaves) -> Leaves:
        """The leaves with the first observations of these envs' episodes.

        Raises:
            EnvRaised: one of them cannot be taken, or the filter raised.
        """
        for env, error in self._strays(envs).items():
            raise EnvRaised(env, error)
        try:
            self._last = self._processed(envs, onto)
        except Exception as error:
            raise EnvRaised(envs[0], error) from error
        return self._last

    def _strays(self, envs: list[int]) -> dict[int, Exception]:
        """Which of these envs gave observations that are no members of their space, with what is wrong."""
        found = self._preprocessor.strays(self._rows(envs)) if envs else {}
        return {envs[row]: error for row, error in found.items()}

    def _rows(self, envs: list[int]) -> Leaves:
        return self._raw if len(envs) == len(self._everyone) else [leaf[envs] for leaf in self._raw]

    def _processed(self, envs: list[int], onto: Leaves) -> Leaves:
        """The processed observations of these envs in the place of others."""
        if not envs:
            return onto
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


def blank(host: ArrayHost) -> Leaves:
    """Leaves of zeros, onto which the first reset of all envs is written."""
    n = host.spec.num_envs
    return [np.zeros((n, *leaf.shape), dtype=leaf.dtype) for leaf in host.spec.observation]


def is_needed(preprocessor: Preprocessor, filter_: Filter) -> bool:
    """Whether observations would become others."""
    return not (isinstance(preprocessor, NoPreprocessor) and isinstance(filter_, NoFilter))
