"""What a policy reads from its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from swath.rollout.seeding import PrivateStreams
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.checks import MODEL_DEFAULTS
from swath.seeds import derive_named


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with defaults for all that it does not say."""
    given = dict(config)
    model = {**MODEL_DEFAULTS, **given.get("model", {})}
    return {**AlgorithmConfig().to_dict(), **given, "model": model}


def device_of(config: Mapping[str, Any]) -> torch.device:
    """Where a worker's policies are.

    Raises:
        RuntimeError: a GPU is asked for, and there is none.
    """
    setting = "num_gpus_per_env_runner" if config.get("worker_index", 0) else "num_gpus"
    gpus = config.get(setting, 0)
    if not gpus or config.get("_fake_gpus", False):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(f"{setting}={gpus!r}, but torch sees no CUDA device here; set it to 0, or _fake_gpus=True")
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def initial_weights(config: Mapping[str, Any], device: torch.device) -> Iterator[None]:
    """While weights are drawn: if there is a seed, they depend on it and the policy's id alone.

    Args:
        config: of the policy.
        device: where it is; the draws of a GPU are private, too.
    """
    seed = config.get("seed")
    if seed is None:
        yield
        return
    with PrivateStreams(derive_named(seed, f"weights of {config.get('__policy_id', '')}"), device).swapped():
        yield


def scheduled(schedule: Sequence[Sequence[float]] | None, constant: float, step: int) -> float:
    """The value at a step, on straight lines between the `[step, value]` of a schedule, the last one beyond its end.

    Args:
        schedule: with growing steps; None: `constant` always.
        constant: likewise.
        step: the global one.
    """
    if schedule is None:
        return constant
    steps, values = zip(*schedule, strict=True)
    return float(np.interp(step, steps, values))
