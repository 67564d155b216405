"""Filters of observations, which transform them for policies; and how workers share the statistics of their filters.

remote workers: statistics, buffer ──copies──▶ local worker: statistics + buffers of all, copied back
remote workers: empty the buffer                            │
remote workers: local statistics + buffer since then ◀──────┘
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.nests import map_nest

# Number of values of one shape, their mean, and the sum of their squared differences from the mean, float64.
Moments: TypeAlias = tuple[int, Array, Array]

_EPSILON = 1e-6

# Guards the statistics of all filters, which several threads may use; one lock for all, so that two filters that learn
# from each other do not wait for each other.
_LOCK = threading.RLock()


class Filter(ABC):
    """Transforms observations for the policy, and may update its statistics from them.

    The buffer holds the updates since `reset_buffer`, which workers send to each other. A filter without statistics
    needs only `__call__`.
    """

    @abstractmethod
    def __call__(self, x: Any, update: bool = True) -> Any:
        """Filter one observation or a batch; with `update`, update the statistics first."""

    def apply_changes(self, other: Any, with_buffer: bool = False) -> None:  # noqa: B027  no statistics
        """Add the buffer of another filter of the same kind; with `with_buffer`, also replace this buffer by it."""

    def copy(self) -> Self:
        """Return a filter with the same state that shares nothing with this one."""
        with _LOCK:
            return deepcopy(self)

    def sync(self, other: Any) -> None:  # noqa: B027
        """Copy the state of another filter of the same kind."""

    def reset_buffer(self) -> None:  # noqa: B027
        """Empty the buffer; the statistics stay."""

    def as_serializable(self) -> Self:
        """Return a copy that can be pickled."""
        return self.copy()


class NoFilter(Filter):
    """Returns observations unchanged; lists and numbers become arrays."""

    def __call__(self, x: Any, update: bool = True) -> Any:  # noqa: ARG002  no statistics
        """Return the observation, or an array of it."""
        return x if isinstance(x, np.ndarray | dict | tuple) else np.asarray(x)


def _moments_of(values: Array) -> Moments:
    """Compute the moments of one batch `[n, …]`; zeros if it is empty."""
    values = np.asarray(values, dtype=np.float64)
    mean = np.asarray(np.add.reduce(values, axis=0) / max(len(values), 1))
    differences = values - mean
    differences *= differences
    return len(values), mean, np.asarray(np.add.reduce(differences, axis=0))


def _merge(first: Moments, second: Moments) -> Moments:
    """Merge the moments of two sets of values (Chan, Golub and LeVeque, 1979) in new arrays."""
    (n, mean, sum_sq_diff), (n_more, mean_more, sum_sq_diff_more) = first, second
    share, difference = n_more / max(n + n_more, 1), mean_more - mean
    sums = sum_sq_diff + sum_sq_diff_more + difference * difference * (n * share)
    return n + n_more, np.asarray(mean + difference * share), np.asarray(sums)


class RunningStat:
    """Statistics of all values pushed, and separately of the delta: the values pushed since `reset_delta`.

    Attributes, all of which may be set, arrays are float64:
        num_pushes, num_pushes_delta: how many values.
        mean_array, mean_delta_array: their mean.
        sum_sq_diff_array, sum_sq_diff_delta_array: the sum of their squared differences from that mean.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.num_pushes, self.mean_array, self.sum_sq_diff_array = _moments_of(np.zeros((0, *shape)))
        self.reset_delta()

    @property
    def n(self) -> int:
        """Return the number of values."""
        return self.num_pushes

    @property
    def mean(self) -> Array:
        """Return the mean, float64."""
        return self.mean_array

    @property
    def var(self) -> Array:
        """Return the unbiased variance, float32; 0 for fewer than two values."""
        return np.asarray(self.sum_sq_diff_array / max(self.num_pushes - 1, 1), dtype=np.float32)

    @property
    def std(self) -> Array:
        """Return the square root of the variance, float32."""
        return np.asarray(np.sqrt(self.var))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.mean_array.shape

    def push(self, x: Any) -> None:
        """Add one value; raise as `push_batch` does."""
        self.push_batch(np.asarray(x)[None])

    def push_batch(self, x: Any) -> None:
        """Add a batch of values `[n, …]`, with the same result as if they were pushed one by one.

        Raises:
            ValueError: the values have another shape.
        """
        values = np.asarray(x)
        if values.shape[1:] != self.shape or values.ndim == 0:
            raise ValueError(f"cannot add values of shape {values.shape[1:]} to statistics of shape {self.shape}")
        pushed = _moments_of(values)
        self._count(pushed)
        self._delta = _merge(self._delta, pushed)

    def update(self, other: RunningStat, with_delta: bool = False) -> None:
        """Add the delta of another statistic; `with_delta` also copies that delta.

        Raises:
            ValueError: it is about values of another shape.
        """
        if other.shape != self.shape:
            raise ValueError(f"cannot merge statistics of shape {other.shape} into statistics of shape {self.shape}")
        self._count(other._delta)
        if with_delta:
            self._delta = deepcopy(other._delta)

    def reset_delta(self) -> None:
        """Start a new delta."""
        self._delta = _moments_of(np.zeros((0, *self.shape)))

    def delta(self) -> RunningStat:
        """Return statistics of the delta alone."""
        stat = RunningStat(self.shape)
        stat.num_pushes, stat.mean_array, stat.sum_sq_diff_array = deepcopy(self._delta)
        stat._delta = deepcopy(self._delta)
        return stat

    def copy(self) -> RunningStat:
        """Return a copy with new arrays."""
        return deepcopy(self)

    def to_state(self) -> dict[str, Any]:
        """Return copies of the attributes by name."""
        return deepcopy(vars(self))

    @staticmethod
    def from_state(state: dict[str, Any]) -> RunningStat:
        """Build statistics from a state of `to_state`."""
        stat = RunningStat()
        vars(stat).update(deepcopy(state))
        return stat

    @property
    def _delta(self) -> Moments:
        return self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array

    @_delta.setter
    def _delta(self, moments: Moments) -> None:
        self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array = moments

    def _count(self, more: Moments) -> None:
        moments = self.num_pushes, self.mean_array, self.sum_sq_diff_array
        self.num_pushes, self.mean_array, self.sum_sq_diff_array = _merge(moments, more)


class MeanStdFilter(Filter):
    """Normalises observations: `(x - mean) / (std + 1e-6)`, clipped, in the dtype of `x`.

    Args:
        shape: the shape of one observation, or a nest of shapes in dicts and tuples; leaves whose shape is None pass
            through unchanged.
        demean: subtract the mean.
        destd: divide by the standard deviation.
        clip: at the end, clip numbers to `[-clip, clip]`; None clips nothing.

    Attributes:
        running_stats: a `RunningStat` per leaf, of all observations; also under the name `rs`. Their deltas are the
            buffer.
    """

    def __init__(self, shape: Any, demean: bool = True, destd: bool = True, clip: float | None = 10.0) -> None:
        self.shape, self.demean, self.destd, self.clip = shape, demean, destd, clip
        self.rs = self.running_stats = _make_stats(shape)

    @property
    def buffer(self) -> Any:
        """Return statistics of the observations since `reset_buffer`, a `RunningStat` per leaf."""
        with _LOCK:
            return map_nest(lambda stat: stat and stat.delta(), self.running_stats)

    def __call__(self, x: Any, update: bool = True) -> Any:
        """Filter one observation or a batch `[n, …]`; the statistics get a whole batch before it is normalised."""
        with _LOCK:
            return map_nest(partial(self._filter_leaf, update), self.running_stats, x)

    def apply_changes(self, other: MeanStdFilter, with_buffer: bool = False) -> None:
        """Add the buffer of another filter; with `with_buffer`, also replace this buffer by it."""
        with _LOCK:
            new_stats = other.copy().running_stats
            map_nest(lambda stat, new: stat and stat.update(new, with_delta=with_buffer), self.running_stats, new_stats)

    def sync(self, other: MeanStdFilter) -> None:
        """Copy the state of the other filter."""
        with _LOCK:
            vars(self).update(vars(other.copy()))

    def reset_buffer(self) -> None:
        """Empty the buffer; the running statistics stay."""
        with _LOCK:
            map_nest(lambda stat: stat and stat.reset_delta(), self.running_stats)

    def _filter_leaf(self, update: bool, stat: RunningStat | None, x: Any) -> Any:
        if stat is None:
            return x
        values = np.asarray(x)
        dtype = values.dtype
        if stat.shape not in (values.shape, values.shape[1:]):
            raise ValueError(f"cannot filter an observation of shape {values.shape}; wanted {stat.shape}, or a batch")
        if update:
            stat.push_batch(values if values.ndim > len(stat.shape) else values[None])
        if self.demean:
            values = values - stat.mean
        if self.destd:
            values = values / (stat.std + _EPSILON)
        if self.clip:
            values = np.clip(values, -self.clip, self.clip)
        return np.asarray(values, dtype=dtype)


class ConcurrentMeanStdFilter(MeanStdFilter):
    """A `MeanStdFilter` under RLlib's name for a filter that threads share: every `MeanStdFilter` may be shared."""


def _make_stats(shape: Any) -> Any:
    """Return a `RunningStat` for each shape in a nest of shapes."""
    if shape is None:
        return None
    if isinstance(shape, dict):
        return {key: _make_stats(part) for key, part in shape.items()}
    if isinstance(shape, list | tuple) and not all(isinstance(size, int | np.integer) for size in shape):
        return tuple(_make_stats(part) for part in shape)
    return RunningStat(tuple(int(size) for size in np.atleast_1d(shape)))


def get_filter(filter_config: str | Callable[[Any], Filter], shape: Any) -> Filter:
    """Return the filter of this name, or the callable's filter, for observations of this shape.

    Raises:
        ValueError: there is none of this name.
        TypeError: the callable returns an object that is no filter.
    """
    if filter_config == "NoFilter":
        return NoFilter()
    if filter_config in ("MeanStdFilter", "ConcurrentMeanStdFilter"):
        return (MeanStdFilter if filter_config == "MeanStdFilter" else ConcurrentMeanStdFilter)(shape, clip=None)
    if not callable(filter_config):
        raise ValueError(f"observation_filter={filter_config!r} is unknown; see AlgorithmConfig.env_runners")  # noqa: TRY004  as the peer's
    filter_: Any = filter_config(shape)
    if not isinstance(filter_, Filter):
        raise TypeError(f"observation_filter={filter_config!r} made {filter_!r}, which is no Filter")
    return filter_


# By policy id.
Filters = Mapping[str, Filter]


def copy_filters(filters: Filters, *, flush_after: bool = False) -> dict[str, Filter]:
    """Copy filters with their buffers; empty the buffers afterwards if `flush_after`, statistics never.

    What other threads push at the same time is not lost.
    """
    with _LOCK:
        copies = {policy_id: filter_.as_serializable() for policy_id, filter_ in filters.items()}
        for filter_ in filters.values() if flush_after else ():
            filter_.reset_buffer()
    return copies


def replace_statistics(filters: Filters, new: Filters) -> None:
    """Replace the statistics of each filter by its new filter's, and add its own buffer to them.

    Buffers stay; the new filters' buffers are not used.

    Raises:
        AssertionError: some policies have no new filter; nothing was changed.
        ValueError: a new filter is for observations of another shape; nothing was changed.
    """
    missing = [policy_id for policy_id in filters if policy_id not in new]
    if missing:
        raise AssertionError(f"no new filters for the policies {missing}; there are filters for {list(new)}")
    with _LOCK:
        rebased = {policy_id: new[policy_id].copy() for policy_id in filters}
        for policy_id, filter_ in filters.items():
            rebased[policy_id].apply_changes(filter_, with_buffer=True)
        for policy_id, filter_ in filters.items():
            filter_.sync(rebased[policy_id])


class FilterManager:
    """Merges the statistics of the filters of a set of workers."""

    @staticmethod
    def synchronize(
        local_filters: Filters,
        worker_set: Any,
        update_remote: bool = True,
        timeout_seconds: float | None = None,
        use_remote_data_for_update: bool = True,
    ) -> None:
        """Merge the buffers of remote workers into the local filters, and send the local filters to the workers.

        Args:
            local_filters: by policy id; changed in place.
            worker_set: a `WorkerSet`.
            update_remote: send the merged filters.
            timeout_seconds: of each of the two rounds; None: 10.
            use_remote_data_for_update: collect from remote workers; otherwise their buffers are discarded when
                filters are sent to them, as RLlib does.

        Raises:
            WorkerLate: workers have not answered in time. The buffers of the others are merged and sent, and
                late answers are merged the next time.
            Exception: what a worker raised; the buffers of the others are merged and sent.
        """
        if not update_remote and not use_remote_data_for_update:
            return
        remote_filters, failures = worker_set.collect_filters(timeout_seconds)
        merged = dict(local_filters)
        for filters in remote_filters if use_remote_data_for_update else ():
            for policy_id, filter_ in filters.items():
                if policy_id in merged:
                    merged[policy_id].apply_changes(filter_)
                else:  # only remote workers have this policy
                    merged[policy_id] = filter_
        if update_remote:
            worker_set.send_filters(copy_filters(merged), timeout_seconds)
        if failures:
            for other in failures[1:]:
                failures[0].add_note(f"another worker raised, too: {other!r}")
            raise failures[0]
