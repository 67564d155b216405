"""Batches whose numbers say where they are from, and what is in a batch as plain lists."""

import numpy as np
import torch

from swath.rollout_workers import MultiAgentBatch, SampleBatch


def episodes():
    """Two episodes of three and two rows, with nested columns and infos."""
    return SampleBatch(
        {
            "obs": {"x": np.arange(5.0), "y": (np.arange(5), np.arange(10).reshape(5, 2))},
            "rewards": np.array([0.0, 1.0, 2.0, 3.0, 4.0], dtype=np.float32),
            "terminateds": np.array([0, 0, 1, 0, 0], dtype=bool),
            "truncateds": np.array([0, 0, 0, 0, 1], dtype=bool),
            "eps_id": np.array([7, 7, 7, 3, 3]),
            "infos": [{"row": i} for i in range(5)],
        },
        _num_grad_updates=2,
        _is_training=True,
    )


def sequences():
    """Sequences of two, three and one rows; the state before row i is i, as far as it is known."""
    return SampleBatch(
        {
            "a": np.array([10, 11, 12, 13, 14, 15]),
            "b": {"c": np.array([0, 1, 2, 3, 4, 5])},
            "state_in_0": np.array([0.0, 2.0, 5.0]),
            "infos": [{"row": i} for i in range(6)],
            "seq_lens": [2, 3, 1],
        }
    )


def plain(value):
    """Everything as lists, dicts and numbers."""
    if isinstance(value, MultiAgentBatch):
        return value.count, plain(value.policy_batches)
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic | torch.Tensor) else value
