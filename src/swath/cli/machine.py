"""What `swath doctor` looks at beside env and policy: packages, CPUs, shared memory, Ray and its token."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ERROR, WARNING, NOTE = "error", "warning", "note"
"""It fails or gives wrong data; it works at a price; it is good to know."""

SHM = Path("/dev/shm")  # noqa: S108  the system's own name
STORE_PART, STORE_MOST = 0.3, 10 * 10**9
"""Ray's object store takes this part of the memory, and no more bytes than that."""

CONNECT_S, ANSWER_S = 5, 45
MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
JOIN = """
import json, logging, ray
try:
    ray.init(address="auto", log_to_driver=False, logging_level=logging.CRITICAL)
    print(json.dumps({"cpus": ray.cluster_resources().get("CPU", 0)}))
except Exception as error:
    why = []
    while error is not None:
        why.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    print(json.dumps({"said": why[0], "refused": "AuthenticationError" in str(why)}))
"""
"""Asks a cluster in a process of its own, which is no part of it afterwards."""


class Finding(NamedTuple):
    """One thing that is not as it should be, and what to do about it."""

    level: str
    what: str
    value: str
    do: str


def look_at_versions() -> Iterator[Finding]:
    """Packages that are older than Swath, or an extra of it, needs."""
    for requirement in requires("swath") or ():
        asked = re.match(r"([\w.-]+)[^>;]*>=\s*([\d.]+)", requirement)
        try:
            have = version(asked[1]) if asked else ""
        except PackageNotFoundError:
            continue
        if asked and _numbers(have) < _numbers(asked[2]) and not re.search(r"extra == .(dev|docs)", requirement):
            move = f'pip install --upgrade "{asked[1]}>={asked[2]}"'
            yield Finding(WARNING if "extra" in requirement else ERROR, asked[1], f"{have} is too old", move)


def look_at_memory() -> Iterator[Finding]:
    """Too little room for Ray's object store; Swath's own processes share memory without a name."""
    if not SHM.is_dir() or not _has_ray():
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free, wanted = shutil.disk_usage(SHM).free, min(int(memory * STORE_PART), STORE_MOST)
    if free < wanted:
        move = (
            f"start the container with --shm-size={wanted / 2**30:.1f}g, or delete what is left in it: Ray keeps "
            "fragments on disk otherwise"
        )
        yield Finding(WARNING, str(SHM), f"{free / 2**20:,.0f} MiB free, Ray takes {wanted / 2**20:,.0f}", move)


def look_at_ray(workers: int, environment: Mapping[str, str], *, wanted: bool) -> Iterator[Finding]:
    """Whether Ray is there, its cluster lets us in, and has a CPU for each worker.

    Args:
        workers: how many there are to be.
        environment: variables; Ray is asked only if it is wanted or they name a cluster.
        wanted: whether workers are to be on Ray.
    """
    level, address = ERROR if wanted else WARNING, environment.get("RAY_ADDRESS", "")
    if not _has_ray():
        if wanted:
            yield Finding(level, "Ray", "not installed", 'pip install "swath[ray]", or use --backend process')
        return
    if address.startswith("ray://"):
        move = "run the script on a machine of the cluster, as `ray job submit` does: a client cannot read its memory"
        yield Finding(level, "RAY_ADDRESS", address, move)
        return
    answer = ask(environment) if wanted or address else {}
    if answer.get("refused"):
        yield Finding(level, "Ray's token", *_about_token(environment))
    elif "said" in answer and (address or "Could not find any running Ray instance" not in answer["said"]):
        move = "start it with `ray start --head`, or unset RAY_ADDRESS: Swath then starts one on this machine"
        yield Finding(level, "the Ray cluster", answer["said"], move)
    cpus = answer.get("cpus", os.cpu_count() or 1)
    if workers > cpus and wanted:
        yield Finding(level, "workers", f"{workers} on {cpus:g} CPUs", "use fewer, with more envs each, or add a node")


def ask(environment: Mapping[str, str]) -> dict[str, Any]:
    """Join the cluster that `ray.init()` would join, and leave it again.

    Returns:
        `cpus`, or `said` and whether it `refused` the token.
    """
    host, _, port = environment.get("RAY_ADDRESS", "").rpartition(":")
    try:
        if port.isdecimal():  # where nothing listens Ray would try for a minute
            socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        return {"said": f"{host}:{port}: {error}"}
    few = {"RAY_NUM_REDIS_GET_RETRIES": "3"}  # has Ray give up after some seconds, not a minute
    try:
        done = subprocess.run(  # noqa: S603  our own words
            [sys.executable, "-c", JOIN],
            env={**environment, **few},
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"said": f"no answer in {ANSWER_S} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answer: dict[str, Any] = json.loads(lines[-1]) if lines else {"said": " ".join(done.stderr.split())[-300:]}
    return answer


def _about_token(environment: Mapping[str, str]) -> tuple[str, str]:
    """Where the token comes from, in Ray's own order, and what to do about it."""
    file = environment.get(TOKEN_PATH) or str(Path.home() / ".ray" / "auth_token")
    place = TOKEN if environment.get(TOKEN) else file if Path(file).is_file() else None
    get = "run `ray get-auth-token` on the head of the cluster and put what it prints into"
    if place is None:
        return "none, and the cluster wants one", f"{get} ~/.ray/auth_token"
    if environment.get(MODE, "").lower() != "token":
        return f"the one in {place} may not be shown: {MODE} is not set", f"set {MODE}=token; else {get} {place}"
    return f"the one in {place} is refused", f"{get} {place}"


def _has_ray() -> bool:
    try:
        version("ray")
    except PackageNotFoundError:
        return False
    return True


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3]]
