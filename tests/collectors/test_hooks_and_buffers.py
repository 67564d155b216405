"""Post-processing, hooks, and writing to a replay buffer."""

import io
import threading

import pytest
import torch
from collector_toys import LONG, Memory, counting, drawn, fleet, make_collector
from rich.console import Console
from torch import nn

from swath import Progress
from swath.testing import CountingEnvs, Fault, Lives


def test_the_order_is_split_postproc_private_entries_hook_and_hand_out():
    calls = []

    def postproc(td):
        calls.append(("postproc", td.shape, ("collector", "mask") in td.keys(include_nested=True)))
        for key in ("added", "_secret", ("deep", "_secret")):
            td[key] = torch.ones(td.shape)
        return td

    with make_collector(
        split_trajs=True,
        postproc=postproc,
        pre_collect_hook=lambda: calls.append("before"),
        post_collect_hook=calls.append,
    ) as collector:
        batch = collector.next()
    assert calls[:2] == ["before", ("postproc", (3, 5), True)]
    assert calls[2] is batch
    assert "added" in batch.keys()  # noqa: SIM118
    assert not [key for key in batch.keys(include_nested=True) if "_secret" in key]


def test_what_postproc_returns_is_delivered_and_frames_are_counted_before():
    with make_collector(postproc=lambda td: td[:, :2], total_frames=20) as collector:
        batches = list(collector)
        assert collector.stats()["frames"] == 20
    assert [batch.shape for batch in batches] == [(2, 2)] * 2


class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.moves = 0

    def to(self, *args, **kwargs):
        self.moves += 1
        return super().to(*args, **kwargs)

    def forward(self, td):
        return td.set("scaled", td["next", "reward"] * self.scale.detach())


@pytest.mark.parametrize(("device", "moves"), [(None, 0), ("cpu", 1)])
def test_a_postproc_module_is_moved_to_the_batchs_device_once(device, moves):
    module = Placed()
    with make_collector(postproc=module, storing_device=device, total_frames=30) as collector:
        assert len(list(collector)) == 3
    assert module.moves == moves


# ---- replay buffers


@pytest.mark.parametrize("options", [{}, {"track_traj_ids": False}])
def test_whole_episodes_are_written_flat_all_that_are_complete(options):
    buffer = Memory()
    env = CountingEnvs(counting(3))
    with make_collector(
        env, envs_per_worker=2, frames_per_batch=16, replay_buffer=buffer, trajs_per_batch=5, **options
    ) as collector:
        assert [collector.next() for _ in range(2)] == [None, None]
    assert [td.shape for td in buffer.written] == [(12,), (18,)]
    for td in buffer.written:
        assert td["observation"][:, 2].tolist() == [0, 1, 2] * (len(td) // 3)
        assert td["next", "done"].squeeze(-1).tolist() == [False, False, True] * (len(td) // 3)
        assert ("collector", "mask") not in td.keys(include_nested=True)


def test_trajs_per_write_is_the_size_of_a_write():
    buffer, env = Memory(), CountingEnvs(counting(3))
    options = {"replay_buffer": buffer, "trajs_per_batch": 5, "trajs_per_write": 2}
    with make_collector(env, frames_per_batch=12, total_frames=18, **options) as collector:
        assert list(collector) == [None] * 3
        stats = collector.stats()
    assert (stats["frames"], stats["batches"], stats["frames_discarded"]) == (18, 3, 6)
    assert [td.shape for td in buffer.written] == [(6,)] * 3


class OnDevice(Memory):
    def __init__(self, device):
        super().__init__()
        self.storage = type("Storage", (), {"device": device})()


@pytest.mark.parametrize(("device", "where"), [("meta", "meta"), ("auto", None), (None, None)])
def test_data_are_moved_to_the_device_that_the_storage_names(device, where):
    buffer = OnDevice(device)
    with make_collector(replay_buffer=buffer) as collector:
        collector.next()
    assert buffer.written[0].device == (None if where is None else torch.device(where))


def lines():
    """Return a view that prints lines, and its output."""
    file = io.StringIO()
    return Progress(Console(file=file, width=200), every_s=0.01), lambda: file.getvalue().splitlines()


def views():
    return [thread for thread in threading.enumerate() if thread.name == "swath-progress"]


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("kind", [None, "sync", "async"])
def test_a_collector_is_shown_with_what_became_of_its_workers_until_it_is_shut_down(kind, tmp_path):
    view, printed = lines()
    if kind is None:
        collector, wanted = make_collector(total_frames=200, progress=view), ["Collector: "]
    else:
        sources = [*Lives(tmp_path, {0: [[Fault("kill", step=7)]]}, 1, LONG).sources(1), CountingEnvs(LONG, first=1)]
        collector = fleet(kind, sources, envs_per_worker=1, total_frames=200, progress=view)
        wanted = [" of 2 workers", "restarts 1, fragments lost 1"]
    with collector:
        drawn(collector, len(collector))
        assert len(views()) == 1
        with pytest.raises(RuntimeError, match="watches another collector"):
            make_collector(progress=view)
    assert views() == []
    for part in (" 200 of 200 frames (100 %), ", *wanted):
        assert part in printed()[-1]
