"""In which place an `Evaluator` has its workers, and what it asks of Ray."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal, get_args

Place = Literal["thread", "process", "ray"]

NUM_GPUS = 1
_HERE, _APART = "Collector", "MultiSyncCollector"
_OURS = ("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime")


def place_of(backend: Any, *, apart: bool) -> Place:
    """Where workers live: a thread becomes a process if something asks for a process of its own.

    Raises:
        ValueError: an unknown backend.
        RuntimeError: Ray is not installed.
    """
    if backend not in get_args(Place):
        raise ValueError(f"Unknown backend {backend!r}; choose one of {', '.join(map(repr, get_args(Place)))}")
    if backend == "ray" and find_spec("ray") is None:
        raise RuntimeError("Ray is required for backend='ray': pip install \"swath[ray]\"")
    place: Place = "process" if backend == "thread" and apart else backend
    return place


def is_apart(collector_cls: Any) -> bool:
    """Whether this collector class, or its name, stands for a child process.

    Raises:
        ValueError: another class; evaluation has its own runner.
    """
    name = collector_cls
    if isinstance(collector_cls, type) and collector_cls.__module__.partition(".")[0] in ("swath", "torchrl"):
        name = collector_cls.__name__
    if name not in (None, _HERE, _APART):
        raise ValueError(
            f"collector_cls={collector_cls!r} has no meaning here, for evaluation has its own runner; give "
            f"{_HERE!r}, {_APART!r} to run it in a child process, one of these classes, or None"
        )
    return bool(name == _APART)


def resources_of(
    place: Place, workers: int, num_gpus: Any, ray_kwargs: Any, said: str = "ray_kwargs"
) -> dict[str, Any]:
    """What each worker asks of its place, as options of `ray.remote`; nothing elsewhere.

    Args:
        place: where workers live.
        workers: how many.
        num_gpus: as it was given.
        ray_kwargs: other options, as they were given.
        said: what these are called, in messages.

    Raises:
        TypeError: not a mapping, or not a number.
        ValueError: something that this place cannot follow, or that is not the user's to say.
    """
    if isinstance(num_gpus, bool) or not isinstance(num_gpus, int | float):
        raise TypeError(f"num_gpus={num_gpus!r} must be a number")
    if not 0 <= num_gpus < float("inf"):
        raise ValueError(f"num_gpus={num_gpus!r} must be a number ≥ 0")
    if ray_kwargs is not None and not isinstance(ray_kwargs, Mapping):
        raise TypeError(f"{said} is of type {type(ray_kwargs).__name__}; give a dict of options of ray.remote()")
    options = dict(ray_kwargs or {})
    if place != "ray":
        _require_unasked(place, num_gpus, options)
        return {}
    for option in _OURS:
        if option in options:
            raise ValueError(f"{said} has {option!r}, which Swath sets itself; leave it out")
    if "num_gpus" in options:
        raise ValueError(f"{said} has num_gpus={options['num_gpus']!r}; give it as num_gpus of the Evaluator")
    if "name" in options and workers > 1:
        raise ValueError(f"{said} has name={options['name']!r} for num_workers={workers}; a name is for one worker")
    return {**options, "num_gpus": num_gpus}


def _require_unasked(place: Place, num_gpus: float, options: Mapping[str, Any]) -> None:
    for name, given, default in (("num_gpus", num_gpus, NUM_GPUS), ("ray_kwargs", options, {})):
        if given != default:
            raise ValueError(f"{name}={given!r} with backend={place!r}: it is for backend='ray'; leave it out")
