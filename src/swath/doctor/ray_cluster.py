"""Whether Ray is there, and its cluster lets us in."""

from __future__ import annotations

from collections.abc import Iterator

from swath.doctor.finding import Finding, Level
from swath.doctor.machine import Threads
from swath.doctor.ray_facts import RayFacts
from swath.doctor.subject import Subject


def check_ray(subject: Subject, ray: RayFacts, threads: Threads) -> Iterator[Finding]:
    """From the package to the cluster and its room; what is not wanted is only noted.

    Args:
        subject: what is to be on Ray.
        ray: what is known of it.
        threads: and CPUs of this machine, where a cluster is begun if there is none.
    """
    wanted = subject.backend == "ray"
    if ray.version is None:
        yield Finding(
            Level.ERROR if wanted else Level.NOTE,
            "Ray",
            "not installed",
            "ray, for workers on Ray" if wanted else "ray, should you want workers on several machines",
            'pip install "swath[ray]", or use --backend process',
        )
        return
    level = Level.ERROR if wanted else Level.WARNING
    yield from _token(ray, level)
    yield from _cluster(ray, level)
    if wanted:
        yield from _room(subject.workers, ray, threads.cpus)


def _token(ray: RayFacts, level: Level) -> Iterator[Finding]:
    if ray.answer == "refused":
        if not ray.token:
            yield Finding(
                level,
                "Ray's token",
                f"none, and the cluster at {ray.address} wants one",
                "the token of that cluster",
                "run `ray get-auth-token` on its head and put what it prints into ~/.ray/auth_token or RAY_AUTH_TOKEN",
            )
        elif ray.mode.lower() != "token":
            yield Finding(
                level,
                "Ray's token",
                f"the one in {ray.token} is not shown to the cluster at {ray.address}, which wants one",
                "RAY_AUTH_MODE=token, where the cluster's address is given",
                "set RAY_AUTH_MODE=token",
            )
        else:
            yield _stale(ray, level)
    elif ray.mode.lower() == "token" and not ray.token and ray.address:
        yield Finding(
            level,
            "Ray's token",
            "none, although RAY_AUTH_MODE=token",
            "a token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token",
            "run `ray get-auth-token` on the head of the cluster and put what it prints there",
        )


def _stale(ray: RayFacts, level: Level) -> Finding:
    other = f"{ray.shadowed} has another one: " if ray.shadowed else ""
    drop = f"unset {ray.token.partition('=')[0]} to use it; else " if ray.shadowed else ""
    return Finding(
        level,
        "Ray's token",
        f"the one in {ray.token} is refused by the cluster at {ray.address}",
        "the token with which that cluster was started",
        f"{other}{drop}run `ray get-auth-token` on its head and put what it prints into {ray.token.split('=')[-1]}; if "
        "the cluster is yours, starting it anew takes the new token, too",
    )


def _room(workers: int, ray: RayFacts, here: int) -> Iterator[Finding]:
    """Each worker asks for a CPU. A cluster that is there may grow; one that is begun here does not."""
    fresh = ray.address is None
    cpus = here if fresh else ray.cpus
    if cpus is not None and workers > cpus:
        yield Finding(
            Level.ERROR if fresh else Level.WARNING,
            "workers",
            f"{workers} on a cluster of {cpus:g} CPU{'s' if cpus != 1 else ''}{', begun here' if fresh else ''}",
            "a CPU for each: they are waited for, and the run ends if there is no room",
            f"use {cpus:g}, with more envs each" if cpus >= 1 else "add a node with CPUs",
        )


def _cluster(ray: RayFacts, level: Level) -> Iterator[Finding]:
    if ray.address is not None and ray.address.startswith("ray://"):
        yield Finding(
            level,
            "RAY_ADDRESS",
            ray.address,
            "the address of the cluster itself, such as 10.0.0.1:6379 or auto",
            "run the script on a machine of the cluster, as `ray job submit` does: a client cannot read arrays where "
            "they lie",
        )
    elif ray.answer == "none":
        yield Finding(
            level,
            "the Ray cluster",
            f"{ray.address} does not let us in: {ray.said}",
            "a cluster that runs, of the same versions of Ray and Python",
            "start it with `ray start --head`, or unset RAY_ADDRESS: Swath then starts one on this machine",
        )
