"""Rows for the tests of datasets."""

import torch
from tensordict import TensorDict


def rows_of(first, n, ends=()):
    """Rows whose entries say which row they are: `first`, `first + 1`, …"""
    number = torch.arange(first, first + n)
    done = torch.tensor([[row in ends] for row in number.tolist()])
    return TensorDict(
        {
            "observation": number.float().reshape(n, 1, 1).expand(n, 2, 3).clone(),
            "pixels": number.to(torch.uint8).reshape(n, 1).expand(n, 5).clone(),
            "action": number,
            "next": {"reward": number.double().unsqueeze(-1), "done": done},
            "collector": {"traj_ids": number + 2**47},
        },
        [n],
    )
