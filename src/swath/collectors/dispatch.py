"""Which class a `Collector(backend=…)` builds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from swath.collectors.checks import require_backend, whole_number
from swath.collectors.multi import MultiCollector, MultiSyncCollector
from swath.nearest import unexpected

RESERVED = ("create_env_fn", "policy", "backend", "backend_options", "num_collectors", "num_workers", "sync")


def built_elsewhere(kind: type[Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """The collector of another class that `Collector(*args, **keywords)` means; `None` for one in this process.

    Raises:
        TypeError: `num_collectors` is no int, or no class has such a keyword: a word that is misspelt is named before
            one that is missing because of it.
        ValueError: it is not positive, an unknown backend, or a keyword that does nothing here.
    """
    number = keywords.get("num_collectors")
    if number is not None and whole_number("num_collectors", number) < 1:
        raise ValueError(f"num_collectors={number} must be a positive integer")
    if require_backend(keywords.get("backend"), number) != "direct":
        return _elsewhere(args, keywords)
    own = inspect.signature(kind).parameters
    require_here({name: value for name, value in keywords.items() if name not in own})
    return None


def require_here(keywords: Mapping[str, Any]) -> None:
    """Keywords of other classes are taken in this process at their defaults only.

    Raises:
        TypeError: no class has such a keyword.
        ValueError: it does nothing here.
    """
    others = _others() if keywords else {}
    for name, value in keywords.items():
        if name not in others:
            raise unexpected("Collector", name, (*others, *RESERVED))
        if name == "num_workers":
            _require_no_workers(value)
        if not any(value is default or value == default for default in others[name]):
            raise ValueError(
                f"{name}={value!r} is for collectors with workers elsewhere; backend 'direct' has one worker in this "
                "process: leave it out, or set backend='process' or 'ray'"
            )


def _elsewhere(args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """The collector that `Collector(*args, **keywords)` means.

    Raises:
        TypeError: more than two positional arguments, or a keyword that the class does not have.
        ValueError: keys of `backend_options` that are reserved or given twice, or a number of workers that does not
            match the list of sources, or has the name that it has elsewhere.
    """
    given = dict(keywords)
    _require_no_workers(given.pop("num_workers", None))
    backend = require_backend(given.pop("backend", None), given.get("num_collectors"))
    number, sync = given.pop("num_collectors", None), bool(given.pop("sync", None))
    options = given.pop("backend_options", None) or {}
    _require_new(options, given)
    source = args[0] if args else given.get("create_env_fn")
    if isinstance(source, list | tuple) and number not in (None, len(source)):
        raise ValueError(f"num_collectors={number} does not match the list of {len(source)} env sources; leave it out")
    if number is None and not isinstance(source, list | tuple):
        number = 1
    if backend == "ray":
        from swath.collectors.ray_collector import RayCollector  # noqa: PLC0415  Ray is optional

        return RayCollector(*args, **{**given, **options, "sync": sync, "num_collectors": number})
    place = "thread" if backend == "thread" else "process"
    return MultiCollector(*args, sync=sync, **{**given, **options, "backend": place, "num_workers": number})


def _require_no_workers(num_workers: Any) -> None:
    """The classes with workers elsewhere call `num_workers` what is `num_collectors` here."""
    if num_workers is not None:
        raise ValueError(f"num_workers={num_workers!r}: Collector calls it num_collectors; give num_collectors instead")


def _require_new(options: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    reserved, duplicate = sorted(set(options) & set(RESERVED)), sorted(set(options) & set(given))
    if reserved:
        raise ValueError(f"backend_options has the reserved keys {reserved}; pass them to Collector itself")
    if duplicate:
        raise ValueError(f"backend_options has the duplicate keys {duplicate}, which Collector was given, too")


@cache
def _others() -> dict[str, list[Any]]:
    """Keywords of the other classes, and their defaults."""
    from swath.collectors.ray_collector import RayCollector  # noqa: PLC0415  it imports this module

    defaults: dict[str, list[Any]] = {}
    for kind in (MultiSyncCollector, RayCollector):
        for name, one in inspect.signature(kind).parameters.items():
            if one.kind is inspect.Parameter.KEYWORD_ONLY:
                defaults.setdefault(name, []).append(one.default)
    return defaults
