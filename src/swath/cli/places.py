"""Where the workers of a command live: `--workers`, `--backend` and `--eval-backend`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swath.cli.failure import UsageError

if TYPE_CHECKING:
    from swath.bench import Setting

INLINE, THREAD, PROCESS, RAY, NONE = "inline", "thread", "process", "ray", "none"
BACKENDS = (INLINE, THREAD, PROCESS, RAY)
JUDGES = (THREAD, PROCESS, RAY, NONE)
"""Where evaluations run."""
ALIASES = {"direct": INLINE}
"""What the library's own `Collector` calls them."""


def backend_named(name: str) -> str:
    """The backend of this name.

    Raises:
        UsageError: there is none.
    """
    known = ALIASES.get(name, name)
    if known not in BACKENDS:
        raise UsageError(f"--backend {name} must be one of {', '.join(BACKENDS)}")
    return known


def placed(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a command with `backend` as it is or, if it was left out, as the number of workers has it.

    Raises:
        UsageError: there is no such backend.
    """
    default = INLINE if given.get("workers", 1) == 1 else PROCESS
    return {**given, "backend": backend_named(given.get("backend", default))}


def require_room(workers: int, backend: str) -> None:
    """Refuse several workers where there is one.

    Raises:
        UsageError: more than one worker inline.
    """
    if backend == INLINE and workers > 1:
        raise UsageError(f"--backend {INLINE} is one worker in this process; for --workers {workers} choose {PROCESS}")


def require_judge(name: str) -> None:
    """Refuse names that are not one of `JUDGES`.

    Raises:
        UsageError: it is another.
    """
    if name not in JUDGES:
        raise UsageError(f"--eval-backend {name} must be one of {', '.join(JUDGES)}")


def collector_keywords(workers: int, backend: str, device: str) -> dict[str, Any]:
    """What `Collector` is told of the place, for batches to which every worker adds its share.

    Policies act on this command's device; on Ray on the CPU, which every node has.
    """
    if backend == INLINE:
        return {"policy_device": device}
    acting = "cpu" if backend == RAY else device
    return {"policy_device": acting, "backend": backend, "num_collectors": workers, "sync": True}


def place_words(workers: int, envs: int, backend: str) -> str:
    """`8 envs`, `2 process workers of 8 envs`, `1 Ray worker of 1 env`."""
    envs_words = f"{envs} envs" if envs > 1 else "1 env"
    if backend == INLINE:
        return envs_words
    kind = "Ray" if backend == RAY else backend
    return f"{workers} {kind} worker{'s' if workers > 1 else ''} of {envs_words}"


def setting_words(setting: Setting) -> str:
    """A setting of `swath bench` in words."""
    inside = setting.backend == INLINE
    if setting.envs is None:
        return "in this process" if inside else f"{setting.backend}, {setting.workers} of them"
    return place_words(setting.workers, setting.envs, setting.backend) + (" in this process" if inside else "")
