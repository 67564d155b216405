"""Values in Ray's store, by references that users hold."""

from __future__ import annotations

from typing import Any

from swath.extras import need


def reference(value: Any) -> Any:
    """Put a value into the store.

    Raises:
        ValueError: Ray is not up in this process.
    """
    ray: Any = need("ray", extra="ray", why="to keep values in Ray's store")
    if not ray.is_initialized():
        raise ValueError("return_obj_refs=True is for workers on Ray, which is not up here; leave it out")
    return ray.put(value)
