"""Join a Ray cluster and leave it: a process of its own, so that whoever asks is not part of a cluster afterwards.

`python -m swath.doctor.ray_probe ADDRESS` prints what became of it as one line of JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import ray
from ray.exceptions import AuthenticationError

REFUSALS = ("unauthenticated", "authentication token", "invalidauthtoken")


def probe(address: str) -> dict[str, Any]:
    """What the cluster at the address answers."""
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except AuthenticationError as error:
        return {"answer": "refused", "said": " ".join(str(error).split())}
    except Exception as error:  # noqa: BLE001  what it says is the answer
        said = " ".join(str(error).split())
        refused = any(word in said.lower() for word in REFUSALS)
        return {"answer": "refused" if refused else "none", "said": said}
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    ray.shutdown()
    return {"answer": "ok", "said": f"{sum(node['Alive'] for node in nodes)} nodes"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe(sys.argv[1])) + "\n")
