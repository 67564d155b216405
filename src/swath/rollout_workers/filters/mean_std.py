"""Filters that bring observations to mean 0 and standard deviation 1, by what was seen so far."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from swath.rollout.spaces import Array
from swath.rollout_workers.filters.base import Filter, NoFilter
from swath.rollout_workers.filters.running_stat import RunningStat, moments_of
from swath.rollout_workers.nests import map_nest

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
