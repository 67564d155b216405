"""How long fragments are that together make a training batch."""

from __future__ import annotations


def auto_length(batch_size: int, num_envs: int, num_workers: int, worker_index: int) -> int:
    """Steps of each sub-env of a worker: the even share rounded down, one more on the first workers, at least 1.

    Worker 0, which samples where there are no others, counts as one of the first.
    """
    share, rest = divmod(batch_size, num_envs * num_workers)
    return max(1, share + ((worker_index - 1) * num_envs < rest if rest else 0))
