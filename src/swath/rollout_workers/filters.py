"""What is done to observations before the policy sees them, and how workers share what filters learnt.

workers  rs + buffer ──copies, then buffers emptied──▶ local filters: rs + Σ buffers
rs := theirs + what was seen meanwhile ◀──copies── local filters
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

# Of a set of values of one shape: how many, their mean, the sum of their squared differences from it, float64.
Moments: TypeAlias = tuple[int, Array, Array]

_SMALLEST_SCALE = 1e-6

# Held while what a filter learnt changes or is copied, as several threads may ask; one for all filters, so that two
# which learn from each other do not wait for each other.
_LOCK = threading.RLock()


class Filter(ABC):
    """Turns observations into what the policy sees, and may learn from them on the way.

    What it has learnt since `reset_buffer` stands in a buffer, too: that is what workers send each other. A filter that
    learns nothing needs `__call__` alone.
    """

    @abstractmethod
    def __call__(self, x: Any, update: bool = True) -> Any:
        """One observation or a batch of them, filtered; the filter learns from them first, if `update`."""

    def apply_changes(self, other: Any, with_buffer: bool = False) -> None:  # noqa: B027  nothing to learn
        """Learn what stands in the buffer of one of the same kind; `with_buffer` takes that buffer over, too."""

    def copy(self) -> Self:
        """A filter of the same state that shares nothing with this one."""
        with _LOCK:
            return deepcopy(self)

    def sync(self, other: Any) -> None:  # noqa: B027
        """Become a copy of one of the same kind."""

    def reset_buffer(self) -> None:  # noqa: B027
        """Empty the buffer; what was learnt stays."""

    def as_serializable(self) -> Self:
        """A copy, which can be pickled."""
        return self.copy()


class NoFilter(Filter):
    """Hands observations on as they are; lists and numbers become arrays."""

    def __call__(self, x: Any, update: bool = True) -> Any:  # noqa: ARG002  there is nothing to learn
        """The observation, or an array of it."""
        return x if isinstance(x, np.ndarray | dict | tuple) else np.asarray(x)


def _moments_of(values: Array) -> Moments:
    """Of one batch `[n, …]`; zeros if there are none."""
    values = np.asarray(values, dtype=np.float64)
    mean = np.asarray(np.add.reduce(values, axis=0) / max(len(values), 1))
    differences = values - mean
    differences *= differences
    return len(values), mean, np.asarray(np.add.reduce(differences, axis=0))


def _together(one: Moments, more: Moments) -> Moments:
    """Of the values of both (Chan, Golub and LeVeque, 1979); the arrays are fresh."""
    (n, mean, sum_sq_diff), (n_more, mean_more, sum_more) = one, more
    share, apart = n_more / max(n + n_more, 1), mean_more - mean
    sums = sum_sq_diff + sum_more + apart * apart * (n * share)
    return n + n_more, np.asarray(mean + apart * share), np.asarray(sums)


class RunningStat:
    """Statistics of all values pushed; and apart from them the delta, those pushed since `reset_delta`.

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
        """How many values."""
        return self.num_pushes

    @property
    def mean(self) -> Array:
        """Their mean, float64."""
        return self.mean_array

    @property
    def var(self) -> Array:
        """Their unbiased variance, float32; 0 for fewer than two values."""
        return np.asarray(self.sum_sq_diff_array / max(self.num_pushes - 1, 1), dtype=np.float32)

    @property
    def std(self) -> Array:
        """The square root of the variance, float32."""
        return np.asarray(np.sqrt(self.var))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""
        return self.mean_array.shape

    def push(self, x: Any) -> None:
        """Count one value; `push_batch` says what it raises."""
        self.push_batch(np.asarray(x)[None])

    def push_batch(self, x: Any) -> None:
        """Count a batch of values `[n, …]`, as if they were pushed one by one.

        Raises:
            ValueError: the values have another shape.
        """
        values = np.asarray(x)
        if values.shape[1:] != self.shape or values.ndim == 0:
            raise ValueError(f"cannot count values of shape {values.shape[1:]} among those of shape {self.shape}")
        pushed = _moments_of(values)
        self._count(pushed)
        self._delta = _together(self._delta, pushed)

    def update(self, other: RunningStat, with_delta: bool = False) -> None:
        """Count what is new in the other one, its delta; `with_delta` makes that the delta here, which else stays.

        Raises:
            ValueError: it is about values of another shape.
        """
        if other.shape != self.shape:
            raise ValueError(f"cannot merge statistics of shape {other.shape} into those of shape {self.shape}")
        self._count(other._delta)
        if with_delta:
            self._delta = deepcopy(other._delta)

    def reset_delta(self) -> None:
        """Begin a new delta."""
        self._delta = _moments_of(np.zeros((0, *self.shape)))

    def delta(self) -> RunningStat:
        """Statistics of the delta alone, which is all new to it."""
        made = self.copy()
        made.num_pushes, made.mean_array, made.sum_sq_diff_array = deepcopy(self._delta)
        return made

    def copy(self) -> RunningStat:
        """With arrays of its own."""
        return deepcopy(self)

    def to_state(self) -> dict[str, Any]:
        """Copies of the attributes by name."""
        return deepcopy(vars(self))

    @staticmethod
    def from_state(state: dict[str, Any]) -> RunningStat:
        """The statistics that `to_state` gave."""
        made = RunningStat()
        vars(made).update(deepcopy(state))
        return made

    @property
    def _delta(self) -> Moments:
        return self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array

    @_delta.setter
    def _delta(self, moments: Moments) -> None:
        self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array = moments

    def _count(self, more: Moments) -> None:
        all_of = self.num_pushes, self.mean_array, self.sum_sq_diff_array
        self.num_pushes, self.mean_array, self.sum_sq_diff_array = _together(all_of, more)


class MeanStdFilter(Filter):
    """`(x - mean) / (std + 1e-6)`, clipped, in the dtype of `x`.

    Args:
        shape: the shape of one observation, or a nest of shapes in dicts and tuples; leaves where it is None pass
            through as they are.
        demean: subtract the mean.
        destd: divide by the standard deviation.
        clip: at the end, bring numbers to `[-clip, clip]`; None does not.

    Attributes:
        running_stats: a `RunningStat` per leaf, of all observations; also under the name `rs`. Their deltas are the
            buffer.
    """

    def __init__(self, shape: Any, demean: bool = True, destd: bool = True, clip: float | None = 10.0) -> None:
        self.shape, self.demean, self.destd, self.clip = shape, demean, destd, clip
        self.rs = self.running_stats = _by_shape(shape)

    @property
    def buffer(self) -> Any:
        """Statistics of the observations since `reset_buffer`, a `RunningStat` per leaf."""
        return map_nest(lambda stat: stat and stat.delta(), self.running_stats)

    def __call__(self, x: Any, update: bool = True) -> Any:
        """One observation or a batch `[n, …]` of them; a batch is learnt from as a whole before it is normalised."""
        with _LOCK:
            return map_nest(partial(self._filtered, update), self.running_stats, x)

    def apply_changes(self, other: MeanStdFilter, with_buffer: bool = False) -> None:
        """Learn what stands in the buffer of the other one; `with_buffer` takes that buffer over, too."""
        with _LOCK:
            theirs = other.copy().running_stats
            map_nest(lambda own, new: own and own.update(new, with_delta=with_buffer), self.running_stats, theirs)

    def sync(self, other: MeanStdFilter) -> None:
        """Become a copy of the other one."""
        with _LOCK:
            vars(self).update(vars(other.copy()))

    def reset_buffer(self) -> None:
        """Empty the buffer; the running statistics stay."""
        with _LOCK:
            map_nest(lambda stat: stat and stat.reset_delta(), self.running_stats)

    def _filtered(self, update: bool, stat: RunningStat | None, x: Any) -> Any:
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
            values = values / (stat.std + _SMALLEST_SCALE)
        if self.clip:
            values = np.clip(values, -self.clip, self.clip)
        return np.asarray(values, dtype=dtype)


class ConcurrentMeanStdFilter(MeanStdFilter):
    """The same under the name that RLlib has for one which several threads share: every `MeanStdFilter` may be."""


def _by_shape(shape: Any) -> Any:
    """A `RunningStat` for each shape in a nest of them."""
    if shape is None:
        return None
    if isinstance(shape, dict):
        return {key: _by_shape(part) for key, part in shape.items()}
    if isinstance(shape, list | tuple) and not all(isinstance(size, int | np.integer) for size in shape):
        return tuple(_by_shape(part) for part in shape)
    return RunningStat(tuple(int(size) for size in np.atleast_1d(shape)))


def get_filter(filter_config: str | Callable[[Any], Filter], shape: Any) -> Filter:
    """The filter of this name, or the one that the callable makes, for observations of this shape.

    Raises:
        ValueError: there is none of this name.
        TypeError: the callable makes something else.
    """
    if filter_config == "NoFilter":
        return NoFilter()
    if filter_config in ("MeanStdFilter", "ConcurrentMeanStdFilter"):
        return (MeanStdFilter if filter_config == "MeanStdFilter" else ConcurrentMeanStdFilter)(shape, clip=None)
    if not callable(filter_config):
        raise ValueError(f"observation_filter={filter_config!r} is unknown; see AlgorithmConfig.env_runners")  # noqa: TRY004  as the peer's
    made: Any = filter_config(shape)
    if not isinstance(made, Filter):
        raise TypeError(f"observation_filter={filter_config!r} made {made!r}, which is no Filter")
    return made


# By policy id.
Filters = Mapping[str, Filter]


def copies_of(filters: Filters, *, flush_after: bool = False) -> dict[str, Filter]:
    """Copies, with their buffers; the buffers here are emptied afterwards if asked for, statistics never.

    What other threads push meanwhile is not lost.
    """
    with _LOCK:
        copies = {policy_id: own.as_serializable() for policy_id, own in filters.items()}
        for own in filters.values() if flush_after else ():
            own.reset_buffer()
    return copies


def rebase_all(filters: Filters, new: Filters) -> None:
    """Give each filter the statistics of the new one of its policy, and what it has seen since it was last asked.

    Buffers stay, those of the new ones are not used.

    Raises:
        AssertionError: there is no new one for some of them, by whose ids it names them; nothing was changed.
        ValueError: a new one is of observations of another shape; nothing was changed.
    """
    missing = [policy_id for policy_id in filters if policy_id not in new]
    if missing:
        raise AssertionError(f"no new filters for the policies {missing}; there are those of {list(new)}")
    with _LOCK:
        rebased = {policy_id: new[policy_id].copy() for policy_id in filters}
        for policy_id, own in filters.items():
            rebased[policy_id].apply_changes(own, with_buffer=True)
        for policy_id, own in filters.items():
            own.sync(rebased[policy_id])


class FilterManager:
    """Brings the filters of a set of workers to what all of them saw."""

    @staticmethod
    def synchronize(
        local_filters: Filters,
        worker_set: Any,
        update_remote: bool = True,
        timeout_seconds: float | None = None,
        use_remote_data_for_update: bool = True,
    ) -> None:
        """Collect what the remote workers saw into the local filters, and send these to them.

        Args:
            local_filters: by policy id; changed in place.
            worker_set: a `WorkerSet`.
            update_remote: send.
            timeout_seconds: of each of the two rounds; None: 10.
            use_remote_data_for_update: collect; otherwise what they saw is thrown away when they are sent to, as RLlib
                does.

        Raises:
            WorkerLate: workers have not answered in time. What the others saw is taken in and sent, and what they
                answer late is taken in the next time.
            Exception: what a worker raised, likewise.
        """
        if not update_remote and not use_remote_data_for_update:
            return
        theirs, failures = worker_set.collect_filters(timeout_seconds)
        known = dict(local_filters)  # and those of policies that are in remote workers only
        for policy_id, seen in [item for filters in theirs if use_remote_data_for_update for item in filters.items()]:
            if policy_id in known:
                known[policy_id].apply_changes(seen)
            else:
                known[policy_id] = seen
        if update_remote:
            worker_set.send_filters(copies_of(known), timeout_seconds)
        for failure in failures:
            raise failure
