"""Batches whose frames can be identified: the observation is (id, step), the action a unique number."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from tensordict import TensorDict


def batch(done, cut=None, valid=None, *, with_ids=True):
    """Return a batch `[B, T]` of bool lists: ends (`done`), lost rests (`cut`), and masked frames (not `valid`)."""
    done = torch.tensor(done, dtype=torch.bool)
    cut = torch.zeros_like(done) if cut is None else torch.tensor(cut, dtype=torch.bool)
    mask = torch.ones_like(done) if valid is None else torch.tensor(valid, dtype=torch.bool)
    done, cut = done & mask, cut | ~mask
    ids, steps = _labels(done | cut, mask)
    td = _entries(ids, steps, done)
    if with_ids:
        td["collector", "traj_ids"] = ids
    if valid is not None:
        td["collector", "mask"] = mask
    return td


def _labels(ends, mask):
    ids, steps = torch.full(ends.shape, -1), torch.zeros(ends.shape, dtype=torch.int64)
    count = 0
    for row in range(ends.shape[0]):
        step = 0
        for t in range(ends.shape[1]):
            if mask[row, t]:
                ids[row, t], steps[row, t] = 100 + count, step
            step += 1
            if ends[row, t]:
                count, step = count + 1, 0
        count += 1
    return ids, steps


def _entries(ids, steps, done):
    n_rows, length = done.shape
    number = torch.arange(1, n_rows * length + 1).view(n_rows, length)
    end = done.unsqueeze(-1)
    terminated = end & (number % 2 == 0).unsqueeze(-1)
    return TensorDict(
        {
            "observation": torch.stack([ids, steps], -1).float(),
            "action": number,
            "done": torch.zeros_like(end),
            "next": {
                "observation": torch.stack([ids, steps + 1], -1).float(),
                "reward": (number.float() * 0.37 % 1).unsqueeze(-1),
                "done": end,
                "terminated": terminated,
                "truncated": end & ~terminated,
            },
        },
        batch_size=[n_rows, length],
        names=[None, "time"],
    )


@st.composite
def batches(draw, *, masked=False, with_ids=True, most_rows=4, most_steps=12):
    """Draw a batch `[B, T]` with ends, breaks and masked frames anywhere."""
    n_rows, length = draw(st.integers(1, most_rows)), draw(st.integers(1, most_steps))

    def grid(chance):
        flags = st.sampled_from([True] + [False] * chance)
        return [[draw(flags) for _ in range(length)] for _ in range(n_rows)]

    valid = [[not out for out in row] for row in grid(3)] if masked else None
    return batch(grid(3), grid(6) if with_ids else None, valid, with_ids=with_ids)


def stretches(td):
    """Find (row, start, stop) of each run of one id frame by frame, without masked frames."""
    ids, found = td["collector", "traj_ids"], []
    mask = td.get(("collector", "mask"), torch.ones_like(ids, dtype=torch.bool))
    for row in range(ids.shape[0]):
        for t in range(ids.shape[1]):
            if not mask[row, t]:
                continue
            if t and mask[row, t - 1] and ids[row, t] == ids[row, t - 1]:
                found[-1] = (row, found[-1][1], t + 1)
            else:
                found.append((row, t, t + 1))
    return found
