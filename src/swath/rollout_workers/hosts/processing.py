"""A host whose observations are those that policies see: preprocessed, and filtered.

Each observation is processed once: those of a step together, those of a reset with the envs that it is of. The filter
learns from them in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from swath.rollout.hosts.base import ArrayHost, Transition
from swath.rollout.spaces import Leaves, plain_leaves
from swath.rollout_workers.filters.base import Filter, NoFilter
from swath.rollout_workers.hosts.laps import Laps
from swath.rollout_workers.hosts.wrapping import WrappedHost
from swath.rollout_workers.nests import leaves_of, template_of
from swath.rollout_workers.preprocessors import NoPreprocessor, Preprocessor


class ProcessingHost(WrappedHost):
    """An array host with processed observations.

    Args:
        inner: the envs.
        preprocessor: makes processed observations of raw leaves.
        current_filter: the filter of the moment: another may take its place.
        laps: times the steps.
    """

    def __init__(
        self, inner: ArrayHost, preprocessor: Preprocessor, current_filter: Callable[[], Filter], laps: Laps
    ) -> None:
        super().__init__(inner)
        space = preprocessor.observation_space
        self.spec = replace(inner.spec, observation=plain_leaves(space, "observation"))
        self._preprocess = preprocessor.transform_members
        self._filter = current_filter
        self._template = template_of(space)
        self._raw: Leaves = []
        self._laps = laps

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; of observations only theirs are processed."""
        raw = self.inner.reset(envs, self._raw or self._blank(), seeds)
        if raw is self._raw:
            return onto
        self._raw = raw
        return self._onto(onto, list(envs))

    def step(self, action: Leaves) -> Transition:
        """Advance every env; rows of envs that failed are those of the step before."""
        moved = self.inner.step(action)
        self._laps.lap("env_wait")
        self._raw = moved.observation
        moved.observation = self._of_step(moved) if moved.void else self._processed(self._raw)
        self._laps.lap("raw_obs_processing")
        return moved

    def _of_step(self, moved: Transition) -> Leaves:
        failed = {env for env, _, _ in moved.ended}.intersection(moved.void)
        good = [env for env in range(self.spec.num_envs) if env not in failed]
        return self._onto(self._last, good) if good else self._last

    def _processed(self, raw: Leaves) -> Leaves:
        nest = self._filter()(self._preprocess(raw))
        self._last = leaves_of(nest, self._template)
        return self._last

    def _onto(self, onto: Leaves, envs: list[int]) -> Leaves:
        """The processed observations of these envs in the place of others."""
        last = [np.array(leaf) for leaf in onto]
        for leaf, rows in zip(last, self._processed([leaf[envs] for leaf in self._raw]), strict=True):
            leaf[envs] = rows
        self._last = last
        return last

    def _blank(self) -> Leaves:
        return blank(self.inner)


def blank(host: ArrayHost) -> Leaves:
    """Leaves of zeros, onto which the first reset of all envs is written."""
    n = host.spec.num_envs
    return [np.zeros((n, *leaf.shape), dtype=leaf.dtype) for leaf in host.spec.observation]


def is_needed(preprocessor: Preprocessor, filter_: Filter) -> bool:
    """Whether observations would become others."""
    return not (isinstance(preprocessor, NoPreprocessor) and isinstance(filter_, NoFilter))
