"""Which class a `Collector(backend=…)` builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swath.collectors.checks import whole_number
from swath.collectors.multi import MultiCollector
from swath.collectors.options import AnyOptions, CollectorOptions, MultiOptions, RayOptions, defaults

BACKENDS = ("direct", "thread", "process", "multiprocessing", "ray")
RESERVED = ("create_env_fn", "policy", "backend", "backend_options", "num_collectors", "num_workers", "sync")


def built_elsewhere(args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """The collector of another class that `Collector(*args, **keywords)` means; `None` for one in this process.

    Raises:
        TypeError: `num_collectors` is no int, more than two positional arguments, or a keyword that the class does not
            have.
        ValueError: it is not positive, an unknown backend, keys of `backend_options` that are reserved or given twice,
            or a number of workers that does not match the list of sources, or has the name that it has elsewhere.
    """
    given = dict(keywords)
    number, backend = given.pop("num_collectors", None), given.pop("backend", None)
    if number is not None and whole_number("num_collectors", number) < 1:
        raise ValueError(f"num_collectors={number} must be a positive integer")
    meant = ("direct" if number is None else "process") if backend is None else backend
    if meant not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown; backends are {', '.join(map(repr, BACKENDS))}")
    if meant == "direct":
        return None
    _require_no_workers(given.pop("num_workers", None))
    sync, options = bool(given.pop("sync", None)), given.pop("backend_options", None) or {}
    _require_new(options, given)
    source = args[0] if args else given.get("create_env_fn")
    if isinstance(source, list | tuple) and number not in (None, len(source)):
        raise ValueError(f"num_collectors={number} does not match the list of {len(source)} env sources; leave it out")
    if number is None and not isinstance(source, list | tuple):
        number = 1
    if meant == "ray":
        from swath.collectors.ray_collector import RayCollector  # noqa: PLC0415  Ray is optional

        return RayCollector(*args, **{**given, **options, "sync": sync, "num_collectors": number})
    place = "thread" if meant == "thread" else "process"
    return MultiCollector(*args, sync=sync, **{**given, **options, "backend": place, "num_workers": number})


def require_direct(options: AnyOptions) -> None:
    """Check that one worker in this process can be what is asked for: options of other classes are at their defaults.

    Raises:
        ValueError: it cannot.
    """
    if options.num_collectors is not None and options.num_collectors > 1:
        raise ValueError(f"num_collectors={options.num_collectors}: backend 'direct' takes at most one collector")
    if options.sync is not None:
        raise ValueError(f"sync={options.sync!r}: backend 'direct' has one worker and takes no sync; leave it out")
    if options.backend_options:
        raise ValueError(
            f"backend_options={options.backend_options!r}: backend 'direct' takes no options; leave it out"
        )
    if options.weight_sync_schemes is not None:
        raise ValueError(
            "weight_sync_schemes: a Collector in this process acts with the policy itself; leave it out, or "
            "receive with weight_recv_schemes"
        )
    _require_no_workers(options.num_workers)
    of_multi, of_ray = defaults(MultiOptions), defaults(RayOptions)
    for name in {**of_multi, **of_ray}.keys() - defaults(CollectorOptions).keys():
        value = getattr(options, name)
        if value not in [known[name] for known in (of_multi, of_ray) if name in known]:
            raise ValueError(
                f"{name}={value!r} is for collectors with workers elsewhere; backend 'direct' has one worker in this "
                "process: leave it out, or set backend='process' or 'ray'"
            )


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
