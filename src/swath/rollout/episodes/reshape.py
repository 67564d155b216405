"""Batches by trajectory: split, pad, cat.

    ids   0 0 0 1 │ 2 2 3 3          split            0 0 0      mask   1 1 1
          row 0   │ row 1     ─────────────────▶      1 . .             1 . .
                                                      2 2 .             1 1 .
                                                      3 3 .             1 1 .

Ids and mask lie beside each other, in Swath's own batches under `"collector"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase, is_non_tensor

from swath.keys import COLLECTOR, DONE, MASK, NEXT, TRAJ_IDS, Key, as_tuple
from swath.rollout.episodes import joining
from swath.rollout.episodes.entries import in_rows, listed, per_frame, per_frame_or_none, rebuild, spread
from swath.rollout.episodes.nested import nest_by
from swath.rollout.episodes.segments import Runs, ids_from_done, mask_of


def split_trajectories(
    td: TensorDictBase,
    *,
    prefix: Key | None = None,
    trajectory_key: Key | None = None,
    done_key: Key | None = None,
    as_nested: bool | torch.layout = False,
) -> TensorDictBase:
    """One row per trajectory of the batch: `[*B, T]` gives `[n, T_max]`, zeros behind the ends, and a mask.

    A trajectory is a run of one id within one env row; equal ids in different rows are not joined. Order is kept.
    Frames that the batch's mask leaves out belong to no trajectory and are left out. If every env row is one
    trajectory, the shape stays (`[T]` becomes `[1, T]`) and only the mask is added; the entries then share the memory
    of `td`. Non-tensor entries are None behind the ends. `td` itself is not changed.

    Args:
        td: a batch `[*B, T]`.
        prefix: where ids and mask are; by default `"collector"` if the batch has it, else the root.
        trajectory_key: the ids themselves, by default `(prefix, "traj_ids")`; the mask is written beside them.
        done_key: without ids they are taken from `("next", done_key)`, by default `("next", "done")`, and written.
        as_nested: True for nested tensors `[n, -1]` instead of zeros and mask, or the layout these shall have.

    Raises:
        KeyError: neither ids nor done are there.
        RuntimeError: ids or done hold more than one value per frame.
        ValueError: an entry changes its shape from frame to frame.
    """
    ids_key, mask_key = _where(td, prefix, trajectory_key)
    mask = per_frame_or_none(td, mask_key if td.get(mask_key, None) is not None else MASK)
    out = td.copy()
    if td.get(ids_key, None) is None:
        done = per_frame(td, (NEXT, *as_tuple(done_key or DONE)))
        out.set(ids_key, ids_from_done(done, mask))
    runs = Runs.of(per_frame(out, ids_key), mask)
    if as_nested is not False:
        return _nested(out.exclude(mask_key), runs, torch.strided if as_nested is True else as_nested)
    if runs.are_rows:
        return _as_it_is(out, mask_key)
    return _padded(out.exclude(mask_key), runs).set(mask_key, mask_of(runs.lengths))


def pad(episodes: Sequence[TensorDictBase]) -> TensorDict:
    """Episodes `[T_i]` as rows `[n, T_max]`, zeros behind the ends, with `("collector", "mask")`.

    Frames that an episode's own mask leaves out are left out.

    Raises:
        ValueError: no episodes, or one that is not `[T_i]`.
    """
    return joining.padded(_whole(episodes))


def cat(episodes: Sequence[TensorDictBase]) -> TensorDict:
    """Episodes `[T_i]` one behind the other, `[ΣT_i]`, without a mask; frames that a mask leaves out are left out.

    Raises:
        ValueError: no episodes, or one that is not `[T_i]`.
    """
    return joining.flat(_whole(episodes))


def _where(
    td: TensorDictBase, prefix: Key | None, trajectory_key: Key | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys of ids and mask."""
    if trajectory_key is not None:
        ids = as_tuple(trajectory_key)
        return ids, (*ids[:-1], MASK[-1])
    if prefix is None:
        prefix = COLLECTOR if td.get(COLLECTOR, None) is not None else ()
    return (*as_tuple(prefix), TRAJ_IDS[-1]), (*as_tuple(prefix), MASK[-1])


def _as_it_is(out: TensorDictBase, mask_key: tuple[str, ...]) -> TensorDictBase:
    out.set(mask_key, torch.ones(out.batch_size, dtype=torch.bool, device=out.device))
    return out.unsqueeze(0) if out.ndim == 1 else out


def _padded(td: TensorDictBase, runs: Runs) -> TensorDict:
    shape = [len(runs.lengths), int(runs.lengths.max()) if len(runs.lengths) else 0]
    places = runs.places()

    def make(_: Key, entry: Any) -> Any:
        if isinstance(entry, NonTensorData):
            return NonTensorData(entry.data, batch_size=shape)
        if is_non_tensor(entry):
            return spread(runs.pick_values(listed(entry)), places.tolist(), shape)
        frames = runs.pick(entry.flatten(0, td.ndim - 1))
        room = frames.new_zeros(shape[0] * shape[1], *frames.shape[1:])
        return in_rows(room.index_copy_(0, places, frames), shape)

    return rebuild(td, shape, [None, td.names[-1]], make)


def _nested(td: TensorDictBase, runs: Runs, layout: torch.layout) -> TensorDict:
    batch_size, nest = nest_by(runs.lengths, layout)

    def make(key: Key, entry: Any) -> Any:
        if is_non_tensor(entry):
            raise ValueError(f"entry {key!r} is no tensor and cannot be nested; exclude it, or use as_nested=False")
        return nest(runs.pick(entry.flatten(0, td.ndim - 1)))

    return rebuild(td, batch_size, [None, td.names[-1]], make)


def _whole(episodes: Sequence[TensorDictBase]) -> list[joining.Pieces]:
    if not episodes:
        raise ValueError("no episodes to join; give at least one")
    return [[_piece(episode)] for episode in episodes]


def _piece(episode: TensorDictBase) -> joining.Piece:
    if episode.ndim != 1:
        raise ValueError(f"an episode has batch size [T], this one {list(episode.batch_size)}; split it first")
    mask = per_frame_or_none(episode, MASK)
    valid = episode if mask is None or bool(mask.all()) else episode[mask]
    return joining.Piece(joining.Source(valid), 0, 0, len(valid))
