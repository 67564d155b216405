"""One Ray cluster on this machine, which peers join."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator

import ray


def begin() -> str:
    """Start it, with more CPUs than there are, so that everybody is placed; its address."""
    warnings.filterwarnings("ignore", module="ray")
    os.environ["RAY_AUTH_MODE"] = "disabled"  # peers join it; only this machine can reach it
    os.environ["OMP_NUM_THREADS"] = "1"
    context = ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    return str(context.address_info["gcs_address"])


def stored() -> int:
    """Bytes in its object store."""
    from ray._private import internal_api  # Ray's public ways need its dashboard

    state = internal_api.get_state_from_address(ray.get_runtime_context().gcs_address)
    return int(internal_api.get_memory_info_reply(state).store_stats.object_store_bytes_used)


def stored_for(seconds: float) -> Iterator[int]:
    """The same, again and again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield stored()
