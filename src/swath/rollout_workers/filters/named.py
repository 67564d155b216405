"""From the setting `observation_filter` to a filter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from swath.rollout_workers.filters.base import Filter, NoFilter
from swath.rollout_workers.filters.mean_std import ConcurrentMeanStdFilter, MeanStdFilter

FILTERS: dict[str, Callable[[Any], Filter]] = {
    "NoFilter": lambda _: NoFilter(),
    "MeanStdFilter": partial(MeanStdFilter, clip=None),
    "ConcurrentMeanStdFilter": partial(ConcurrentMeanStdFilter, clip=None),
}
"""By name, what makes a filter for observations of a shape, or of a nest of shapes."""


def get_filter(filter_config: str | Callable[[Any], Filter], shape: Any) -> Filter:
    """The filter of this name, or the one that the callable makes, for observations of this shape.

    Raises:
        ValueError: there is none of this name.
        TypeError: the callable makes something else.
    """
    if not callable(filter_config) and filter_config not in FILTERS:
        raise ValueError(f"observation_filter={filter_config!r} is unknown; give one of {list(FILTERS)}, or a callable")
    make = filter_config if callable(filter_config) else FILTERS[filter_config]
    made = make(shape)
    if not isinstance(made, Filter):
        raise TypeError(f"observation_filter={filter_config!r} made {made!r}, which is no Filter")
    return made
