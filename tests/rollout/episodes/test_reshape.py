from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_batches import batch, batches, stretches
from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack

from swath.rollout.episodes.reshape import Frames, Piece, join, split_trajectories

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


@given(batches(masked=True), st.booleans())
def test_splitting_does_not_change_the_input(td, as_nested):
    before = td.clone()
    if td["collector", "mask"].any():
        split_trajectories(td, as_nested=as_nested)
    assert entries_of(td) == entries_of(before)
    assert (td == before).all()


@given(batches(with_ids=False))
def test_without_ids_every_done_and_every_row_begins_a_trajectory(td):
    out = split_trajectories(td)
    ids = out["traj_ids"][out["mask"]]
    assert ids.unique().tolist() == list(range(len(out)))
    starts = torch.cat([torch.ones(td.shape[0], 1, dtype=torch.bool), td["next", "done"][:, :-1, 0]], 1)
    assert torch.equal(ids, starts.flatten().cumsum(0) - 1)
    assert torch.equal(out["action"][out["mask"]], td["action"].flatten())


def test_rows_that_are_one_trajectory_each_keep_their_shape_and_gain_the_mask():
    td = batch([[F, F, T], [F, F, F]])
    out = split_trajectories(td)
    assert out.batch_size == td.batch_size
    assert out["collector", "mask"].all()
    assert out.names == [None, "time"]
    assert (out.exclude(("collector", "mask")) == td).all()


def test_equal_ids_in_neighbouring_rows_are_not_joined():
    td = batch([[F, T, F], [F, F, F]])
    td["collector", "traj_ids"] = torch.tensor([[1, 1, 5], [5, 5, 5]])
    assert split_trajectories(td)["collector", "traj_ids"].tolist() == [[1, 1, 0], [5, 0, 0], [5, 5, 5]]


def test_an_id_that_comes_back_later_in_a_row_is_a_trajectory_of_its_own():
    td = batch([[F, F, F]])
    td["collector", "traj_ids"] = torch.tensor([[3, 4, 3]])
    assert split_trajectories(td)["action"].tolist() == [[1], [2], [3]]


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


def test_without_ids_and_done_there_is_nothing_to_split_by():
    with pytest.raises(KeyError):
        split_trajectories(batch([[F, F]], with_ids=False).exclude(("next", "done")))


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


def test_entries_that_change_their_shape_are_refused():
    ids = torch.tensor([0, 1])
    frames = [TensorDict({"graph": torch.zeros(n), "traj_ids": ids[n]}, []) for n in (0, 1)]
    with pytest.raises(RuntimeError, match="stack"):
        split_trajectories(lazy_stack(frames))


def joined(episodes, layout):
    return join([[Piece(Frames(episode), 0, len(episode))] for episode in episodes], layout)


@given(batches())
def test_joining_what_was_split_gives_back_the_rows(td):
    rows = [row[row["collector", "mask"]].exclude(("collector", "mask")) for row in split_trajectories(td)]
    flat = joined(rows, "cat")
    assert flat.names == ["time"]
    assert (flat == td.view(-1)).all()


def test_joined_batches_own_their_memory():
    td = batch([[F, F, T]])[0]
    for layout in ("padded", "cat"):
        joined([td], layout).zero_()
        assert td["action"].tolist() == [1, 2, 3]


def test_non_tensor_entries_are_joined_too():
    td = with_non_tensors(batch([[F, F, T]]))[0]
    assert joined([td, td[:1]], "cat").get(("next", "word")).tolist() == ["00", "01", "02", "00"]
    out = joined([td, td[:1]], "padded")
    assert out.get(("next", "word")).tolist() == [["00", "01", "02"], ["00", None, None]]
    assert out.get("task").tolist() == [["balance"] * 3, ["balance", None, None]]


def test_joining_names_the_entry_that_some_lack():
    with pytest.raises(KeyError, match="action"):
        joined([batch([[F, F]])[0], batch([[F, F]])[0].exclude("action")], "cat")
