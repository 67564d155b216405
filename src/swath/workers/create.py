"""Backends by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from swath.workers.base import Backend
from swath.workers.local import InlineBackend, ThreadBackend


def backend(
    name: str, *, preload: Sequence[str] = (), bare: bool = False, options: Mapping[str, Any] | None = None
) -> Backend:
    """Return a new backend.

    Args:
        name: `"inline"` or `"direct"`, `"thread"`, `"process"` or `"multiprocessing"`, `"ray"`.
        preload: modules that workers need besides torch, tensordict and gymnasium, imported once where that saves time.
        bare: import nothing in workers before `Job.initializer` has run.
        options: further arguments of the backend; only Ray's has some.

    Raises:
        ImportError: the backend needs a package that is not installed.
        ValueError: the backend is unknown, or does not run on this system.
    """
    if name in ("inline", "direct"):
        return InlineBackend()
    if name == "thread":
        return ThreadBackend()
    if name in ("process", "multiprocessing"):
        if sys.platform != "linux":
            raise ValueError(f"backend={name!r} needs Linux, this is {sys.platform!r}; use 'thread' or 'ray'")
        from swath.workers.process.backend import PRELOAD, ProcessBackend  # noqa: PLC0415  on Linux only

        return ProcessBackend(() if bare else (*PRELOAD, *preload))
    if name == "ray":
        from swath.workers.ray.backend import RayBackend  # noqa: PLC0415  needed by few, imports much

        return RayBackend(**(options or {}))
    raise ValueError(f"backend={name!r} must be one of 'inline', 'thread', 'process', 'ray'")
