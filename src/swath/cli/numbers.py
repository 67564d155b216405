"""The numbers among a command's options."""

from __future__ import annotations

from typing import Any

from swath.cli.failure import UsageError

LEAST = {
    "frames": 1,
    "envs": 1,
    "workers": 1,
    "batch": 1,
    "seed": 0,
    "eval_every": 0,
    "eval_episodes": 1,
    "threads": 1,
    "max_episode_steps": 1,
}
"""The least value of each number."""

MOST_THREADS = 1024
"""Beyond it torch's threads take more memory than there is, and the process with it."""


def require_in_range(options: Any, *only: str) -> None:
    """Refuse numbers that are too small or too large.

    Args:
        options: with attributes of these names, or some of them.
        only: the names to look at; all if there are none.

    Raises:
        UsageError: one is; the message names the option.
    """
    for name, least in LEAST.items():
        if only and name not in only:
            continue
        value = getattr(options, name, None)
        if value is not None and value < least:
            raise UsageError(f"{flag(name)} {value} must be at least {least}")
    if options.threads > MOST_THREADS:
        raise UsageError(f"--threads {options.threads} must be at most {MOST_THREADS}")


def flag(name: str) -> str:
    """How an option is spelled on the command line."""
    return "ENV" if name == "env" else "--" + name.replace("_", "-")
