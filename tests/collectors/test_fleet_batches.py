"""What batches of many workers look like, and how their frames are counted."""

import threading

import pytest
import torch
from collector_toys import IDS, KINDS, Always, Memory, Notebook, drawn, fleet, made_by

from counting_vector import CountingVectorEnv
from swath.testing import Counting, CountingEnv, CountingEnvs

pytestmark = pytest.mark.usefixtures("fork_server")


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (2, 2, 5)),
        ({"cat_results": "stack"}, (2, 2, 5)),
        ({"cat_results": 0}, (4, 5)),
        ({"cat_results": 1}, (2, 10)),
        ({"cat_results": -1}, (2, 10)),
        ({"cat_results": -2}, (4, 5)),
        ({"cat_results": -1, "frames_per_batch": [4, 16]}, (2, 10)),
        ({"frames_per_batch": [10, 10]}, (2, 2, 5)),
    ],
    ids=str,
)
def test_shares_are_joined_as_asked(options, shape):
    with fleet(backend="inline", **options) as collector:
        batches = drawn(collector, 3)
        assert collector.requested_frames_per_batch == 20
    assert {batch.shape for batch in batches} == {shape}
    assert {batch.names[-1] for batch in batches} == {"time"}
    ids = batches[0][IDS]
    assert ids.reshape(-1).unique().tolist() == [0, 1, 1 << 47, (1 << 47) + 1]


def test_an_asynchronous_batch_is_the_sum_of_a_sequence():
    with fleet("async", frames_per_batch=[4, 16], backend="inline") as collector:
        assert collector.next().shape == (2, 10)
        assert collector.frames_per_batch_worker(1) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames_per_batch": [4, 16]}, r"different lengths \(steps by worker: {0: 2, 1: 8}\).*cat_results=-1"),
        ({"frames_per_batch": [4, 16], "cat_results": 1}, "different lengths"),
        ({"cat_results": 2}, "shares have the dimensions"),
        ({"cat_results": -3}, "shares have the dimensions"),
        (
            {"sources": [CountingEnvs(), CountingEnvs(Counting("image"))]},
            r"worker 1 cannot be joined with worker 0: entry 'observation'",
        ),
        (
            {"sources": [CountingEnv, lambda: CountingVectorEnv(3)], "envs_per_worker": None},
            r"batch shape \[3\], not \[\]",
        ),
        ({"policy_factory": [Always, lambda: None]}, "worker 1|policy"),
    ],
)
def test_shares_that_cannot_be_joined_are_refused(options, message):
    before = set(threading.enumerate())
    with pytest.raises((ValueError, TypeError), match=message):
        fleet(backend="thread", **options)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_workers_are_asked_for_no_more_than_the_total(kind, prefetch, tmp_path):
    book = Notebook(tmp_path / "asked")
    options = {"prefetch": prefetch, "total_frames": 70, "pre_collect_hook": lambda: book("asked")}
    with fleet(kind, backend="inline", **options) as collector:
        assert len(collector) == len(list(collector)) == (4 if kind == "sync" else 7)
        assert collector.next() is None
        assert list(collector) == []
        stats = collector.stats()
    assert stats["frames"] == stats["worker_frames"] == (80 if kind == "sync" else 70)
    assert len(book.lines) == stats["frames"] // 10
    assert stats["frames_discarded"] == 0


def test_batches_live_on_the_storing_device():
    with fleet(storing_device="cpu", backend="inline") as collector:
        assert collector.next().device == torch.device("cpu")
    with fleet(backend="inline") as collector:
        assert collector.next().device is None
    with fleet("async", storing_device=["cpu", None], backend="inline") as collector:
        devices = {made_by(batch)[0]: batch.device for batch in drawn(collector, 4)}
    assert devices == {0: torch.device("cpu"), 1: None}
    with fleet(storing_device=["cpu", None], backend="inline") as collector:
        assert collector.next().device == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_warned_of_once():
    with pytest.warns(UserWarning, match="storing_device='cuda' is missing in this process") as caught:
        collector = fleet(storing_device="cuda", backend="inline")
    assert len(caught) == 1
    with collector:
        assert collector.next().device == torch.device("cpu")


def test_a_module_as_postproc_sees_whole_batches():
    class Scaled(torch.nn.Module):
        def forward(self, batch):
            return batch.set("scaled", torch.full(batch.shape, batch.numel()))

    with fleet(postproc=Scaled(), backend="inline") as collector:
        assert collector.next()["scaled"].unique().tolist() == [20]
    buffer = Memory()
    with fleet(postproc=Scaled(), replay_buffer=buffer, backend="inline") as collector:
        collector.next()
    assert [td["scaled"].unique().tolist() for td in buffer.written] == [[10], [10]]
    assert buffer.frames == 20
