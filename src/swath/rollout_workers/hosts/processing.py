"""A host whose observations are those that policies see: preprocessed, and filtered.

Each observation is processed once: those of a step together, those of a reset with the envs that it is of. The filter
learns from them in that order.

    the filter raises in a step   ──▶ the step counts: `take_failure` tells of it, and `settle` is to make up for it
                      in a reset  ──▶ raised; the next reset of these envs goes on from there
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
        self._last: Leaves = []
        self._laps = laps
        self._failure: Exception | None = None
        self._unseen: list[int] = []
        self._begun: list[int] = []

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; of observations only theirs are processed."""
        if self._begun != list(envs):
            raw = self.inner.reset(envs, self._raw or self._blank(), seeds)
            if raw is self._raw:
                return onto
            self._raw, self._begun = raw, list(envs)
        seen = self._onto(onto, self._begun)
        self._begun = []
        return seen

    def step(self, action: Leaves) -> Transition:
        """Advance every env; rows of envs that failed are those of the step before."""
        moved = self.inner.step(action)
        self._laps.lap("env_wait")
        self._raw = moved.observation
        try:
            moved.observation = self._of_step(moved) if moved.void else self._processed(self._raw)
        except Exception as error:  # noqa: BLE001  raised by whoever asks for it, once the step is written down
            self._failure, self._unseen = error, self._good(moved)
            moved.observation = self._last = [leaf.copy() for leaf in self._last]
        self._laps.lap("raw_obs_processing")
        return moved

    @property
    def owes(self) -> bool:
        """Whether the last step led to observations that the filter has refused."""
        return bool(self._unseen)

    def take_failure(self) -> Exception | None:
        """What the filter raised in the last step, which is then told."""
        failure, self._failure = self._failure, None
        return failure

    def settle(self) -> Leaves:
        """Process what is owed, into the arrays that the step has given.

        Raises:
            Exception: what the filter raised: in the step, if that was not told, or now.
        """
        if (failure := self.take_failure()) is not None:
            raise failure
        stand_in = self._last
        for leaf, seen in zip(stand_in, self._onto(stand_in, self._unseen), strict=True):
            leaf[...] = seen
        self._last, self._unseen = stand_in, []
        return stand_in

    def _of_step(self, moved: Transition) -> Leaves:
        good = self._good(moved)
        return self._onto(self._last, good) if good else self._last

    def _good(self, moved: Transition) -> list[int]:
        """Envs that have not failed."""
        failed = {env for env, _, _ in moved.ended}.intersection(moved.void)
        return [env for env in range(self.spec.num_envs) if env not in failed]

    def _processed(self, raw: Leaves) -> Leaves:
        seen = self._preprocess(raw)
        try:
            nest = self._filter()(seen)
        except Exception as error:
            error.add_note("raised by the observation filter; no row is lost, the next call filters again")
            raise
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
