from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_batches import batch, batches, stretches
from tensordict import NonTensorData, NonTensorStack

from swath.rollout.episodes.reshape import EpisodeAssembler, Frames, Piece, join, split_trajectories
from swath.rollout.episodes.statistics import EPISODE_DTYPE, N_EPISODES_IN_MEANS, EpisodeLog

F, T = False, True


def entries_of(td):
    return sorted(map(str, td.keys(include_nested=True, leaves_only=True)))


@given(batches(masked=False) | batches(masked=True))
def test_each_run_of_one_id_becomes_a_row(td):
    runs = stretches(td)
    out = split_trajectories(td)
    if runs == [(row, 0, td.shape[1]) for row in range(td.shape[0])]:
        assert out.batch_size == td.batch_size
    else:
        assert list(out.batch_size) == [len(runs), max((stop - start for _, start, stop in runs), default=0)]
    for i, (row, start, stop) in enumerate(runs):
        length = stop - start
        assert out["collector", "mask"][i].tolist() == [t < length for t in range(out.shape[1])]
        for key in td.exclude(("collector", "mask")).keys(include_nested=True, leaves_only=True):
            assert torch.equal(out[key][i, :length], td[key][row, start:stop])
            assert not out[key][i, length:].any()


@given(batches(with_ids=False))
def test_without_ids_every_done_and_every_row_begins_a_trajectory(td):
    out = split_trajectories(td)
    ids = out["traj_ids"][out["mask"]]
    assert ids.unique().tolist() == list(range(len(out)))
    starts = torch.cat([torch.ones(td.shape[0], 1, dtype=torch.bool), td["next", "done"][:, :-1, 0]], 1)
    assert torch.equal(ids, starts.flatten().cumsum(0) - 1)
    assert torch.equal(out["action"][out["mask"]], td["action"].flatten())


@pytest.mark.parametrize(
    ("where", "ids", "mask"),
    [
        ({"prefix": "meta"}, ("meta", "traj_ids"), ("meta", "mask")),
        ({"prefix": ("a", "b")}, ("a", "b", "traj_ids"), ("a", "b", "mask")),
        ({"trajectory_key": "episode"}, "episode", "mask"),
        ({"trajectory_key": ("meta", "episode")}, ("meta", "episode"), ("meta", "mask")),
    ],
)
@pytest.mark.parametrize("given_ids", [True, False])
def test_the_mask_lies_beside_the_ids_wherever_these_are(where, ids, mask, given_ids):
    td = batch([[F, T, F]], with_ids=False)
    if given_ids:
        td[ids] = torch.tensor([[8, 8, 9]])
    out = split_trajectories(td, **where)
    assert out[mask].tolist() == [[T, T], [T, F]]
    assert out[ids].tolist() == ([[8, 8], [9, 0]] if given_ids else [[0, 0], [1, 0]])


@pytest.mark.parametrize("key", ["ended", ("agents", "ended")])
def test_done_key_names_the_flag_that_makes_ids(key):
    td = batch([[F, F, F]], with_ids=False)
    td["next", key] = torch.tensor([[[T], [F], [F]]])
    assert split_trajectories(td, done_key=key)["traj_ids"].tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("layout", [True, torch.strided, torch.jagged])
def test_nested_tensors_hold_the_same_rows_without_zeros(layout):
    td = batch([[F, T, F, F], [F, F, F, T]], valid=[[T, T, T, T], [T, T, F, F]])
    plain, nested = split_trajectories(td), split_trajectories(td, as_nested=layout)
    assert nested["next", "reward"].is_nested
    assert nested["next", "reward"].layout is (torch.strided if layout is True else layout)
    lengths = plain["collector", "mask"].sum(-1).tolist()
    for key in nested.keys(include_nested=True, leaves_only=True):
        for row, part in enumerate(nested[key].unbind()):
            assert torch.equal(part, plain[key][row, : lengths[row]])


def with_non_tensors(td):
    words = [[f"{row}{t}" for t in range(td.shape[1])] for row in range(td.shape[0])]
    td["next", "word"] = NonTensorStack(*[NonTensorStack(*map(NonTensorData, row)) for row in words])
    td["task"] = NonTensorData("balance", batch_size=td.batch_size)
    return td


def test_non_tensor_entries_are_split_too():
    out = split_trajectories(with_non_tensors(batch([[F, T, F], [F, F, F]], valid=[[T, T, T], [T, F, F]])))
    assert out.get(("next", "word")).tolist() == [["00", "01"], ["02", None], ["10", None]]
    assert out.get("task").tolist() == [["balance", "balance"], ["balance", None], ["balance", None]]


def joined(episodes, layout):
    return join([[Piece(Frames(episode), 0, len(episode))] for episode in episodes], layout)


@given(batches())
def test_joining_what_was_split_gives_back_the_rows(td):
    rows = [row[row["collector", "mask"]].exclude(("collector", "mask")) for row in split_trajectories(td)]
    flat = joined(rows, "cat")
    assert flat.names == ["time"]
    assert (flat == td.view(-1)).all()


def test_means_are_over_the_last_hundred():
    log, totals = EpisodeLog(), []
    assert (log.finished, log.means) == (0, None)
    for n in (0, 3, 98, 250):
        more = list(range(len(totals), len(totals) + n))
        totals += more
        log.add(np.array([(0, total, total + 1) for total in more], EPISODE_DTYPE))
        last = totals[-N_EPISODES_IN_MEANS:]
        assert log.finished == len(totals)
        if last:
            assert log.means == pytest.approx((np.mean(last), np.mean(last) + 1))


# ---- batches of whole episodes


def expected_episodes(td):
    """Find the episodes of a batch `[B, T]` frame by frame: complete ones in order, dropped and remaining frames."""
    running, complete, dropped = {}, [], 0
    ids, done = td["collector", "traj_ids"], td["next", "done"].squeeze(-1)
    mask = td.get(("collector", "mask"), torch.ones_like(ids, dtype=torch.bool))
    for t in range(td.shape[1]):
        for row in range(td.shape[0]):
            if not mask[row, t]:
                continue
            frames = running.setdefault(row, [])
            if frames and ids[row, t] != frames[-1]["collector", "traj_ids"]:
                dropped += len(frames)
                frames.clear()
            frames.append(td[row, t])
            if done[row, t]:
                complete.append(torch.stack(running.pop(row)).exclude(("collector", "mask")))
    return complete, dropped, sum(map(len, running.values()))


@st.composite
def cut_up(draw):
    """Draw a long batch, and the lengths of its fragments."""
    td = draw(batches(masked=draw(st.booleans()), most_steps=14))
    lengths, remaining = [], td.shape[1]
    while remaining:
        lengths.append(draw(st.integers(1, remaining)))
        remaining -= lengths[-1]
    return td, lengths


@settings(deadline=None)
@given(cut_up(), st.integers(1, 3))
def test_episodes_are_the_same_however_the_fragments_are_cut(cut, count):
    td, lengths = cut
    complete, dropped, n_open = expected_episodes(td)
    assembler, lost = EpisodeAssembler(), 0
    for fragment in td.split(lengths, 1):
        lost += assembler.add({0: fragment})
    assert (lost, assembler.ready) == (dropped, len(complete))
    while (out := assembler.next_batch(count)) is not None:
        for i in range(count):
            episode = complete.pop(0)
            assert torch.equal(out["collector", "mask"][i], torch.arange(out.shape[1]) < len(episode))
            assert (out[i, : len(episode)].exclude(("collector", "mask")) == episode).all()
            assert not out["next", "observation"][i, len(episode) :].any()
    assert assembler.ready == len(complete) < count
    assert assembler.drop() == n_open + sum(map(len, complete))
    assert assembler.ready == 0


@settings(deadline=None)
@given(cut_up())
def test_flat_episodes_are_concatenated(cut):
    td, lengths = cut
    complete, _, _ = expected_episodes(td)
    assembler = EpisodeAssembler()
    for fragment in td.split(lengths, 1):
        assembler.add({0: fragment})
    if complete:
        out = assembler.next_batch(len(complete), "cat")
        assert list(out.batch_size) == [sum(map(len, complete))]
        assert out.names == ["time"]
        assert ("collector", "mask") not in out.keys(include_nested=True)
        assert (out == torch.cat(complete)).all()


def actions(td):
    return None if td is None else [row.tolist() for row in td["action"]]


def test_episodes_complete_at_one_step_come_by_worker_then_env():
    assembler = EpisodeAssembler()
    first, second = batch([[F, T], [T, T]]), batch([[T, F], [F, T]])
    first["worker"], second["worker"] = torch.zeros(2, 2), torch.ones(2, 2)
    assembler.add({1: second, 0: first})
    out = assembler.next_batch(assembler.ready, "cat")
    assert list(zip(out["worker"].tolist(), out["action"].tolist(), strict=True)) == [
        (0.0, 3),  # step 0: worker 0, env 1
        (1.0, 1),  # step 0: worker 1, env 0
        (0.0, 1),  # step 1: worker 0, env 0
        (0.0, 2),
        (0.0, 4),  # step 1: worker 0, env 1
        (1.0, 3),  # step 1: worker 1, env 1
        (1.0, 4),
    ]


def test_an_episode_whose_rest_is_lost_is_dropped_and_counted():
    td = batch([[F, F, F, F], [F, F, F, T]], cut=[[F, F, T, F], [F, F, F, F]])
    assembler = EpisodeAssembler()
    assert assembler.add({0: td[:, :2]}) == 0
    assert assembler.add({0: td[:, 2:]}) == 3
    assert actions(assembler.next_batch(1)) == [[5, 6, 7, 8]]
    assert assembler.drop(complete=False) == 1
