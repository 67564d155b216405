"""From arguments for all workers to one value per worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swath.options import count


def sources_of(create_env_fn: Any, n_workers: int | None, name: str) -> list[Any]:
    """One env source per worker.

    Args:
        create_env_fn: a source, or a list of one per worker.
        n_workers: how many workers; `None` for the length of the list.
        name: of that number, for messages.

    Raises:
        ValueError: no list and no number, an empty list, or a number that is not the length of the list.
    """
    if n_workers is not None:
        count(name, n_workers)
    if isinstance(create_env_fn, list | tuple):
        if not create_env_fn:
            raise ValueError("create_env_fn is an empty list; give one env source per worker")
        if n_workers not in (None, len(create_env_fn)):
            raise ValueError(
                f"{name}={n_workers} does not match the list of {len(create_env_fn)} env sources; leave it out"
            )
        return list(create_env_fn)
    if n_workers is None:
        raise ValueError(f"create_env_fn is one env source: say with {name}= how many workers get it, or give a list")
    return [create_env_fn] * n_workers


def spread(name: str, value: Any, n_workers: int) -> list[Any]:
    """One value per worker: of a list its entries, of anything else the same for all.

    Raises:
        ValueError: a list of another length.
    """
    if not isinstance(value, list | tuple):
        return [value] * n_workers
    if len(value) != n_workers:
        raise ValueError(
            f"{name} has {len(value)} entries for {n_workers} workers; give one per worker, or one for all"
        )
    return list(value)


def shares_of(frames_per_batch: Any, n_workers: int, *, sync: bool) -> list[int]:
    """Frames asked of each worker at a time.

    Args:
        frames_per_batch: of a batch, or of each worker's share.
        n_workers: W.
        sync: whether a batch has a share of every worker.

    Raises:
        ValueError: no positive integers, or a sequence of another length.
    """
    if isinstance(frames_per_batch, Sequence) and not isinstance(frames_per_batch, str):
        if len(frames_per_batch) != n_workers:
            raise ValueError(
                f"frames_per_batch has {len(frames_per_batch)} entries for {n_workers} workers; give one per worker"
            )
        shares = [count("frames_per_batch", frames) for frames in frames_per_batch]
        return shares if sync else [sum(shares)] * n_workers
    frames = count("frames_per_batch", frames_per_batch)
    return [-(-frames // n_workers) if sync else frames] * n_workers


def total_of(frames_per_batch: Any) -> Any:
    """Frames of a batch, of whichever form."""
    return sum(frames_per_batch) if isinstance(frames_per_batch, list | tuple) else frames_per_batch
