"""Workers that write to a replay buffer themselves, each by its own client."""

import os
import signal

import pytest
import torch
from collector_toys import IDS, KINDS, LONG, Always, Memory, Notebook, counting, fleet, weights
from writing_toys import FileBuffer, Mishap

from plain import plain
from swath.testing import CountingEnvs, check_lives, same_data
from toys import becomes

pytestmark = pytest.mark.usefixtures("fork_server")

WHOLE = {"trajs_per_batch": 1}
PAIRS = {"trajs_per_batch": 1, "trajs_per_write": 2}
PLACES = ["inline", "process"]


def steady(observation):
    return torch.ones(observation.shape[:-1], dtype=torch.int64)


def ending():
    """Envs whose episodes end."""
    return [CountingEnvs(counting(3, 5, 2), first=2 * worker) for worker in range(2)]


def doubled(td):
    return td.set("doubled", td["observation"] * 2)


def settled(collector):
    """Return the stats after shutdown, and check that every frame is counted once."""
    collector.shutdown()
    stats = collector.stats()
    assert stats["worker_frames"] == stats["frames"] + stats["frames_discarded"] + stats["frames_dropped"]
    return stats


# ---- what is written


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("options", [{}, {"split_trajs": True, "postproc": doubled, "prefetch": 2}], ids=plain)
def test_each_worker_writes_what_this_process_would_have_written_of_it(place, options, tmp_path):
    mine, other = FileBuffer(tmp_path), Memory()
    for buffer in (mine, other):
        options = {"seed": 3, "total_frames": 80, "backend": place, **options}
        with fleet("sync", ending(), steady, replay_buffer=buffer, **options) as collector:
            assert list(collector) == [None] * 4
            assert (collector.stats()["frames"], collector.stats()["batches"]) == (80, 4)
    for worker in range(2):
        for first, two in zip(of_worker(mine, worker), of_worker(other, worker), strict=True):
            assert first.names == two.names
            same_data(first, two)


def of_worker(buffer, worker):
    return [td for td in buffer.written if int(td[IDS].max()) >> 47 == worker]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("options", "count"), [(WHOLE, None), (PAIRS, 2)], ids=["all", "pairs"])
def test_each_worker_writes_its_whole_episodes_flat(kind, options, count, tmp_path):
    buffer = FileBuffer(tmp_path)
    with fleet(kind, ending(), replay_buffer=buffer, total_frames=120, **options) as collector:
        for number, _ in enumerate(collector, 1):
            assert number == collector.stats()["batches"]
    for entry in buffer.entries:
        ends = entry.td["next", "done"].squeeze(-1)
        assert bool(ends[-1])
        assert len(entry.td.shape) == 1
        assert count in (None, int(ends.sum()))
        assert set((entry.td[IDS] >> 47).tolist()) == {entry.client}, "a write has episodes of two workers"
        ids, sizes = entry.td[IDS].unique(return_counts=True)
        assert set(sizes.tolist()) <= {3, 5, 2}
        assert len(ids) == int(ends.sum())
    assert 120 <= settled(collector)["frames"] == buffer.frames


def test_post_processing_and_hooks_run_in_the_worker(tmp_path):
    note, buffer = Notebook(tmp_path / "notes"), FileBuffer(tmp_path / "buffer")

    def postproc(td):
        note("postproc", os.getpid())
        td["_secret"] = td["observation"]
        return doubled(td)

    def after(td):
        note("after", os.getpid())
        td["seen"] = torch.ones(td.shape)
        assert "_secret" not in td

    hooks = {"pre_collect_hook": lambda: note("before", os.getpid()), "post_collect_hook": after}
    with fleet(replay_buffer=buffer, postproc=postproc, total_frames=20, **hooks) as collector:
        list(collector)
        collector.post_collect_hook = None
        assert collector.post_collect_hook is None
    for entry in buffer.entries:
        assert [line.split()[0] for line in note.lines if int(line.split()[1]) == entry.pid] == [
            "before",
            "postproc",
            "after",
        ]
        assert {"doubled", "seen"} <= set(entry.td.keys())
        assert os.getpid() != entry.pid


# ---- by whom


def test_each_life_writes_through_a_client_of_its_own(tmp_path):
    buffer = FileBuffer(tmp_path)
    with fleet(replay_buffer=buffer) as collector:
        collector.next()
        os.kill(collector.collection.group.fleet.up[1].pid, signal.SIGKILL)
        collector.next()
    by_client = {entry.client: int(entry.td[IDS].max()) for entry in buffer.entries}
    assert sorted((ids >> 47, ids >> 32 & 1) for ids in by_client.values()) == [(0, 0), (1, 0), (1, 1)]
    assert len({entry.pid for entry in buffer.entries}) == 3


class ItsOwnClient(Memory):
    """A buffer that is its own client, as TorchRL's plain buffers are."""

    def client(self):
        return self


@pytest.mark.parametrize("place", PLACES)
def test_a_buffer_that_is_its_own_client_is_written_by_this_process(place):
    buffer = ItsOwnClient()
    with fleet(replay_buffer=buffer, backend=place, total_frames=40) as collector:
        list(collector)
    assert len(buffer.written) == 4


# ---- when things go wrong


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_what_extend_raises_leaves_the_draw_and_the_next_goes_on(kind, place, tmp_path):
    buffer = FileBuffer(tmp_path, Mishap("raise", entries=3))
    with fleet(kind, replay_buffer=buffer, backend=place, total_frames=100) as collector:
        with pytest.raises(OSError, match="disk full") as caught:
            list(collector)
        (note,) = [note for note in caught.value.__notes__ if "raised by extend()" in note]
        assert note.startswith("raised by extend() of the replay buffer in worker ")
        assert "remote traceback" in note
        list(collector)
    stats = settled(collector)
    assert (stats["frames"], stats["frames_discarded"]) == (buffer.frames, 10) == (100, 10)
    check_lives(buffer.written, LONG, gaps=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("mishap", "uncounted"), [("die", 0), ("die after", 10)])
def test_a_worker_that_dies_while_it_writes_is_replaced_and_asked_again(kind, mishap, uncounted, tmp_path):
    buffer = FileBuffer(tmp_path, Mishap(mishap, entries=0, client=0))
    with fleet(kind, replay_buffer=buffer, total_frames=100) as collector:
        list(collector)
        stats = collector.stats()
    assert (stats["frames"], stats["restarts"], stats["fragments_lost"] >= 1) == (100, 1, True)
    assert buffer.frames == 100 + uncounted, "more than what was being written is uncounted"
    check_lives(buffer.written, LONG)


# ---- in the background


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, PAIRS], ids=["fragments", "episodes"])
def test_in_the_background_a_pause_lets_what_is_in_flight_be_written(kind, options, tmp_path):
    buffer = FileBuffer(tmp_path)
    with fleet(kind, ending(), Always(0), replay_buffer=buffer, **options) as collector:
        collector.start()
        for _ in range(3):
            before = collector.stats()["frames"]
            with collector.pause():
                frames = buffer.frames
                assert frames == collector.stats()["frames"]
                collector.update_policy_weights_(weights(1))
                assert collector.state_dict()["frames"] == frames
                assert buffer.frames == frames
            assert frames >= before
            assert becomes(lambda before=frames: collector.stats()["frames"] > before)
    assert settled(collector)["frames"] == buffer.frames
