"""Join a Ray cluster and leave it: a process of its own, so that whoever asks is not part of a cluster afterwards.

`python -m swath.doctor.ray_probe ADDRESS` prints what became of it as one line of JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

from swath.extras import need

REFUSAL = "AuthenticationError"
"""Ray's exception for a token; older versions have none."""


def probe(address: str) -> dict[str, Any]:
    """What the cluster at the address answers."""
    ray: Any = need("ray", extra="ray", why="to ask a cluster")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:  # noqa: BLE001  what it says is the answer
        return {"answer": "refused" if is_refusal(error) else "none", "said": " ".join(str(error).split())}
    nodes, cpus = sum(node["Alive"] for node in ray.nodes()), ray.cluster_resources().get("CPU", 0.0)
    ray.shutdown()
    return {"answer": "ok", "said": f"{nodes} nodes", "cpus": cpus}


def is_refusal(error: BaseException) -> bool:
    """Whether this came of a token: Ray tries again and again, and then says only that it could not connect."""
    return any(REFUSAL in f"{type(one).__name__} {one}" for one in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe(sys.argv[1])) + "\n")
