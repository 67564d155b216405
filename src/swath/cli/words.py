"""Words that several commands print."""

from __future__ import annotations

import shlex

INLINE, THREAD, PROCESS, RAY, NONE = "inline", "thread", "process", "ray", "none"


def command_line(*words: object) -> str:
    """These words after this program's name, quoted as a shell wants it."""
    return shlex.join(["swath", *map(str, words)])


def flag(name: str) -> str:
    """How an option is spelled on the command line."""
    return "ENV" if name == "env" else "--" + name.replace("_", "-")


def place_words(workers: int, envs: int | None, backend: str) -> str:
    """`8 envs`, `2 process workers of 8 envs`, `1 Ray worker of 1 env`."""
    inside = "a batch of its own" if envs is None else f"{envs} env{'s' * (envs > 1)}"
    if backend == INLINE:
        return inside
    return f"{workers} {'Ray' if backend == RAY else backend} worker{'s' * (workers > 1)} of {inside}"
