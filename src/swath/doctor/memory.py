"""Whether Ray has room to share memory."""

from __future__ import annotations

from collections.abc import Iterator

from swath.doctor.finding import Finding, Level
from swath.doctor.machine import SharedMemory
from swath.doctor.ray_facts import RayFacts
from swath.doctor.subject import Subject

STORE_PART = 0.3
STORE_MOST = 10 * 10**9
"""Ray's object store takes this part of the memory; it leaves /dev/shm where less than that, and than this, is free."""


def check_memory(subject: Subject, shared: SharedMemory | None, ray: RayFacts) -> Iterator[Finding]:
    """Room for the object store of Ray, where there may be one. Our own processes share memory without a name there."""
    if shared is None or ray.version is None or subject.backend not in (None, "ray"):
        return
    wanted = min(int(shared.memory * STORE_PART), STORE_MOST)
    if shared.free < wanted:
        size = f"{wanted / 2**30:.1f}g"
        yield Finding(
            Level.WARNING,
            str(shared.path),
            f"{spoken(shared.free)} free",
            f"{spoken(wanted)}, for Ray's object store; Swath's own processes need none",
            f"start the container with --shm-size={size} (in Kubernetes mount an emptyDir of medium Memory there), or "
            "delete what others have left in it: Ray keeps fragments on disk otherwise",
        )


def spoken(size: int) -> str:
    """`64 MiB`, `9.3 GiB`."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
