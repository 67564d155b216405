"""Filters that bring observations to mean 0 and standard deviation 1, by what was seen so far."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.filters.base import Filter, NoFilter
from swath.rollout_workers.nests import map_nest

Moments: TypeAlias = tuple[int, Array, Array]
"""Of a set of values of one shape: how many, their mean, the sum of their squared differences from it, float64."""


def moments_of(values: Array) -> Moments:
    """Of one batch `[n, …]`; zeros if there are none."""
    n = len(values)
    if n == 0:
        return 0, np.zeros(values.shape[1:]), np.zeros(values.shape[1:])
    values = np.asarray(values, dtype=np.float64)
    mean = np.asarray(np.add.reduce(values, axis=0) / n)
    differences = values - mean
    differences *= differences
    return n, mean, np.asarray(np.add.reduce(differences, axis=0))


def _together(one: Moments, more: Moments) -> Moments:
    """Of the values of both; the arrays are fresh."""
    (n, mean, sum_sq_diff), (n_more, mean_more, sum_more) = one, more
    if n == 0 or n_more == 0:
        return deepcopy(one if n_more == 0 else more)
    share, apart = n_more / (n + n_more), mean_more - mean
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
        self.num_pushes, self.mean_array, self.sum_sq_diff_array = moments_of(np.zeros((0, *shape)))
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
        """Count one value.

        Raises:
            ValueError: it has another shape.
        """
        self.push_batch(np.asarray(x)[None])

    def push_batch(self, x: Any) -> None:
        """Count a batch of values `[n, …]`, as if they were pushed one by one.

        Raises:
            ValueError: the values have another shape.
        """
        values = np.asarray(x)
        if values.shape[1:] != self.shape or values.ndim == 0:
            raise ValueError(f"cannot count values of shape {values.shape[1:]} among those of shape {self.shape}")
        self.absorb(moments_of(values))

    def absorb(self, pushed: Moments) -> None:
        """Count values of which these are the moments."""
        self._count(pushed)
        delta = _together(self._delta, pushed)
        self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array = delta

    def update(self, other: RunningStat) -> None:
        """Count what is new in the other one, its delta; it does not become part of the delta here.

        Raises:
            ValueError: it is about values of another shape.
        """
        if other.shape != self.shape:
            raise ValueError(f"cannot merge statistics of shape {other.shape} into those of shape {self.shape}")
        self._count(other._delta)

    def reset_delta(self) -> None:
        """Begin a new delta."""
        nothing = moments_of(np.zeros((0, *self.shape)))
        self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array = nothing

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

    def __repr__(self) -> str:
        return f"<RunningStat n={self.n}, mean of means {np.mean(self.mean):.4g}, mean of stds {np.mean(self.std):.4g}>"

    @property
    def _delta(self) -> Moments:
        return self.num_pushes_delta, self.mean_delta_array, self.sum_sq_diff_delta_array

    def _count(self, more: Moments) -> None:
        all_of = self.num_pushes, self.mean_array, self.sum_sq_diff_array
        self.num_pushes, self.mean_array, self.sum_sq_diff_array = _together(all_of, more)


_SMALLEST_SCALE = 1e-6


class MeanStdFilter(Filter):
    """`(x - mean) / (std + 1e-6)`, clipped, in the dtype of `x`; its methods may be called by several threads at once.

    Args:
        shape: the shape of one observation, or a nest of shapes in dicts and tuples; leaves where it is None pass
            through as they are.
        demean: subtract the mean.
        destd: divide by the standard deviation.
        clip: at the end, bring numbers to `[-clip, clip]`; None does not.

    Attributes:
        running_stats: a `RunningStat` per leaf, of all observations; also under the name `rs`.
        buffer: the same of the observations since `reset_buffer`.
    """

    def __init__(self, shape: Any, demean: bool = True, destd: bool = True, clip: float | None = 10.0) -> None:
        self.shape, self.demean, self.destd, self.clip = shape, demean, destd, clip
        self.running_stats, self.buffer = _by_shape(shape), _by_shape(shape)
        self._guard = threading.RLock()

    @property
    def rs(self) -> Any:
        """The running statistics."""
        return self.running_stats

    def __call__(self, x: Any, update: bool = True) -> Any:
        """One observation or a batch `[n, …]` of them; a batch is learnt from as a whole before it is normalised.

        Raises:
            ValueError: the shape is neither that of one observation nor of a batch.
        """
        with self._guard:
            values = map_nest(_checked, self.running_stats, x)
            if update:
                _each(_learn, self.running_stats, self.buffer, values)
            return map_nest(self._normalised, self.running_stats, values)

    def apply_changes(self, other: MeanStdFilter, with_buffer: bool = False) -> None:
        """Learn what stands in the buffer of the other one; `with_buffer` takes that buffer over, too."""
        theirs = other.copy().buffer
        with self._guard:
            _each(RunningStat.update, self.running_stats, theirs)
            if with_buffer:
                self.buffer = theirs

    def sync(self, other: MeanStdFilter) -> None:
        """Become a copy of the other one."""
        theirs = other.copy().__getstate__()
        with self._guard:
            self.__dict__.update(theirs)

    def reset_buffer(self) -> None:
        """Empty the buffer; the running statistics stay."""
        with self._guard:
            self.buffer = _by_shape(self.shape)

    def __getstate__(self) -> dict[str, Any]:
        with self._guard:
            state = dict(self.__dict__)
        del state["_guard"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _guard=threading.RLock())

    def _normalised(self, stat: RunningStat | None, values: Any) -> Any:
        if stat is None:
            return values
        dtype = values.dtype
        if self.demean:
            values = values - stat.mean
        if self.destd:
            values = values / (stat.std + _SMALLEST_SCALE)
        if self.clip:
            values = np.clip(values, -self.clip, self.clip)
        return np.asarray(values, dtype=dtype)


class ConcurrentMeanStdFilter(MeanStdFilter):
    """The same by its other name: any `MeanStdFilter` has a lock."""


def _by_shape(shape: Any) -> Any:
    """A `RunningStat` for each shape in a nest of them."""
    if shape is None:
        return None
    if isinstance(shape, dict):
        return {key: _by_shape(part) for key, part in shape.items()}
    if isinstance(shape, list | tuple) and not all(isinstance(size, int | np.integer) for size in shape):
        return tuple(_by_shape(part) for part in shape)
    return RunningStat(tuple(int(size) for size in np.atleast_1d(shape)))


def _checked(stat: RunningStat | None, x: Any) -> Any:
    if stat is None:
        return x
    values = np.asarray(x)
    if stat.shape not in (values.shape, values.shape[1:]):
        raise ValueError(
            f"cannot filter an observation of shape {values.shape}; wanted {stat.shape}, or a batch of such"
        )
    return values


def _learn(stat: RunningStat, buffer: RunningStat, values: Array) -> None:
    pushed = moments_of(values if values.ndim > len(stat.shape) else values[None])
    stat.absorb(pushed)
    buffer.absorb(pushed)


def _each(function: Callable[..., None], stats: Any, *others: Any) -> None:
    map_nest(lambda stat, *rest: None if stat is None else function(stat, *rest), stats, *others)


def get_filter(filter_config: str | Callable[[Any], Filter], shape: Any) -> Filter:
    """The filter of this name, or the one that the callable makes, for observations of this shape.

    Raises:
        ValueError: there is none of this name.
        TypeError: the callable makes something else.
    """
    makers: dict[Any, Callable[[Any], Any]] = {
        "NoFilter": lambda _: NoFilter(),
        "MeanStdFilter": partial(MeanStdFilter, clip=None),
        "ConcurrentMeanStdFilter": partial(ConcurrentMeanStdFilter, clip=None),
    }
    make = makers.get(filter_config, filter_config)
    if not callable(make):
        raise ValueError(f"observation_filter={filter_config!r} is unknown; see AlgorithmConfig.env_runners")  # noqa: TRY004  as the peer's
    made = make(shape)
    if not isinstance(made, Filter):
        raise TypeError(f"observation_filter={filter_config!r} made {made!r}, which is no Filter")
    return made
