"""Facts about Ray, as values: what is installed, which cluster is meant, which token it is shown, what it answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

ANSWER_S = 60.0
CONNECT_S = 5.0
FEW_TRIES = {"RAY_NUM_REDIS_GET_RETRIES": "3"}
"""Has Ray give up after some seconds: it takes a token that is refused for a cluster that is not up yet."""
ADDRESS, MODE, TOKEN, TOKEN_PATH = "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
Answer = Literal["ok", "refused", "none"]


@dataclass(frozen=True)
class RayFacts:
    """What is known of Ray.

    Attributes:
        version: of the package; `None` without it.
        address: of the cluster that would be joined; `None` where one would be started here.
        mode: `RAY_AUTH_MODE`; if it is not set `"token"` where Ray shows its token unasked, else empty.
        token: where the token comes from that is shown to a cluster; empty without one.
        shadowed: where another token is that is not shown, because of the first; empty if there is none.
        answer: what the cluster said: `"ok"`, `"refused"` the token, or `"none"`; `None` if it was not asked.
        said: in its own words.
        cpus: that the cluster has, taken ones among them; `None` if it was not asked.
    """

    version: str | None
    address: str | None = None
    mode: str = ""
    token: str = ""
    shadowed: str = ""
    answer: Answer | None = None
    said: str = ""
    cpus: float | None = None


def ray_here(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> RayFacts:
    """Look, and ask the cluster if there is one."""
    try:
        have = version("ray")
    except PackageNotFoundError:
        return RayFacts(None)
    address, (token, shadowed) = cluster_meant(environment), tokens(environment, home or Path.home())
    known = RayFacts(have, address, mode_meant(environment, token), token, shadowed)
    if address is None or "://" in address:
        return known
    return replace(known, **ask(address, known.mode))


def cluster_meant(environment: Mapping[str, str]) -> str | None:
    """The address that `ray.init()` takes: the variable, or what `ray start` has left."""
    if given := environment.get(ADDRESS, ""):
        return None if given == "local" else given
    left = Path(environment.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"  # noqa: S108  Ray's own place
    return (left.read_text(encoding="utf-8").strip() or None) if left.is_file() else None


def mode_meant(environment: Mapping[str, str], token: str) -> str:
    """Whether `ray.init()` shows its token: without being told to, it does so to a cluster that it has found itself."""
    if mode := environment.get(MODE, ""):
        return mode
    return "token" if token and environment.get(ADDRESS, "auto") in ("", "auto") else ""


def tokens(environment: Mapping[str, str], home: Path) -> tuple[str, str]:
    """Where Ray takes its token from, and where it would find another one; in its own order."""
    places: dict[str, str] = {}
    if given := environment.get(TOKEN, "").strip():
        places[TOKEN] = given
    for name, path in ((TOKEN_PATH, environment.get(TOKEN_PATH, "")), ("", str(home / ".ray" / "auth_token"))):
        if path and Path(path).is_file():
            places[f"{name}={path}" if name else path] = Path(path).read_text(encoding="utf-8").strip()
    names = list(places)
    others = [name for name in names[1:] if places[name] != places[names[0]]]
    return names[0] if names else "", others[0] if others else ""


def ask(address: str, mode: str) -> dict[str, Any]:
    """Join the cluster in a process of its own, and leave it again.

    Returns:
        `answer`, `said` and, if it let us in, `cpus`, as in `RayFacts`.
    """
    if deaf := _unheard(address):
        return {"answer": "none", "said": deaf}
    command = [sys.executable, "-m", "swath.doctor.ray_probe", address]
    environment = {**os.environ, **FEW_TRIES, **({MODE: mode} if mode else {})}
    try:
        done = subprocess.run(  # noqa: S603  our own module
            command, env=environment, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"answer": "none", "said": f"no answer in {ANSWER_S:g} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"answer": "none", "said": " ".join(done.stderr.split())[-300:]}
    told: dict[str, Any] = json.loads(lines[-1])
    return told


def _unheard(address: str) -> str | None:
    """Why nothing listens at `host:port`, if so; Ray would try for a minute."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return None
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        return f"{error}"
    return None
