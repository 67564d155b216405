from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_batches import batch, batches

from swath.rollout.episodes.reshape import EpisodeAssembler

F, T = False, True


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
    while (out := assembler.take(count)) is not None:
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
        out = assembler.take(len(complete), "cat")
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
    out = assembler.take(assembler.ready, "cat")
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
    assert actions(assembler.take(1)) == [[5, 6, 7, 8]]
    assert assembler.drop(complete=False) == 1
