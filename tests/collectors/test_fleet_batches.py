"""Batches of many workers: their rows, frames, order, weights, whole episodes and early ends."""

import threading
import warnings

import pytest
import torch
from collector_toys import (
    AT_ONCE,
    IDS,
    KINDS,
    LONG,
    MASK,
    PLACES,
    VERSION,
    Always,
    Held,
    InThread,
    Memory,
    Notebook,
    drawn,
    drawn_until,
    fleet,
    made_by,
    numbered,
    weights,
)

from counting_vector import CountingVectorEnv
from swath.collectors.gather import Fragments
from swath.testing import (
    Counting,
    CountingEnv,
    CountingEnvs,
    EnvBroke,
    Fault,
    Lives,
    Script,
    check_counted,
    check_lives,
)
from toys import DEADLINE_S, Gate

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


# ---- order, weights and age


@pytest.mark.parametrize("place", ["thread", "process"])
def test_rows_are_workers_whatever_the_order_of_arrival(place, gate):
    sources = [lambda: Held(gate, at=3), CountingEnvs(LONG, first=1)]
    with fleet(sources=sources, envs_per_worker=1, backend=place) as collector:
        drawing = InThread(collector.next)
        gate.await_arrival()
        gate.open()
        assert made_by(drawing.join().value) == [0, 1]


def test_the_first_that_is_ready_is_served_first(gate):
    sources = [lambda: Held(gate, at=3), CountingEnvs(LONG, first=1)]
    with fleet("async", sources, envs_per_worker=1) as collector:
        batches = drawn(collector, 3)
        gate.await_arrival()
        gate.open()
        batches += drawn_until(collector, lambda batch: made_by(batch) == [0])
    assert [made_by(batch) for batch in batches[:3]] == [[1]] * 3
    check_lives(batches, LONG)


def test_among_ready_workers_the_one_served_longest_ago_comes_first():
    with fleet("async", numbered(3), prefetch=2) as collector:
        drawn(collector, 1)
        order = []
        for _ in range(12):
            collector.get_distant_attr("worker_idx")  # all that was asked for is there now
            order += made_by(collector.next())[:1]
    assert all(sorted(order[i : i + 3]) == [0, 1, 2] for i in range(len(order) - 2))


@pytest.mark.parametrize(("prefetch", "version"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_moment_when_a_worker_is_asked(kind, prefetch, version):
    with fleet(kind, numbered(1), Always(0), frames_per_batch=10, prefetch=prefetch) as collector:
        collector.next()
        collector.update_policy_weights_(weights(1))
        assert collector.next()[VERSION].unique().tolist() == [version]
        assert collector.next()[VERSION].unique().tolist() == [1]


# ---- the random beginning


def is_random(batch):
    """Return whether some actions are not `Always(2)`'s."""
    return batch["action"].unique().tolist() != [2]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_exactly_the_first_batches_asked_for_are_random(kind, place):
    with fleet(kind, policy=Always(2), init_random_frames=50, prefetch=1, backend=place, total_frames=120) as collector:
        batches = list(collector)
    frames = batches[0].numel()
    assert sum(map(is_random, batches)) == -(-50 // frames)
    if kind == "sync":
        assert list(map(is_random, batches)) == [True] * 3 + [False] * 3


# ---- fragments that are too old


def test_a_stale_fragment_is_dropped_counted_and_requested_again():
    with fleet("async", numbered(1), Always(0), max_staleness=1, prefetch=2) as collector:
        collector.next()
        for number in (1, 2):
            collector.update_policy_weights_(weights(number))
        collector.get_distant_attr("worker_idx")
        batch = collector.next()
        stats = collector.stats()
    assert batch[VERSION].unique().tolist() == [2]
    assert (stats["batches_dropped"], stats["frames_dropped"], stats["frames"]) == (2, 20, 20)
    assert stats["batches_overdue"] == 0


def test_a_fragment_asked_for_after_a_drop_is_delivered_whatever_its_age(gate):
    sources = [lambda: Held(gate, at=11)]
    options = {"envs_per_worker": 1, "max_staleness": 0, "prefetch": 1, "frames_per_batch": 5}
    with fleet("async", sources, Always(0), **options) as collector:
        collector.next()
        collector.update_policy_weights_(weights(1))  # the second fragment is too old by now
        drawing = InThread(collector.next)
        gate.await_arrival()  # the third is being made
        collector.update_policy_weights_(weights(2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gate.open()
            batch = drawing.join().value
        stats = collector.stats()
    assert batch[VERSION].unique().tolist() == [1]
    assert (stats["batches_dropped"], stats["batches_overdue"], stats["frames"]) == (1, 1, 10)
    assert any("raise max_staleness" in str(warning.message) for warning in caught)


def test_random_batches_are_never_stale():
    with fleet("async", numbered(1), Always(2), max_staleness=0, init_random_frames=20, backend="inline") as collector:
        collector.next()
        collector.update_policy_weights_(weights(1))
        collector.next()
        assert collector.stats()["batches_dropped"] == 0


# ---- batches of whole episodes


SHORT = Counting(script=Script(lengths=(3, 5, 1, 4), endings=("terminated",)))
LONGER = Counting(script=Script(lengths=(13, 7, 9), endings=("terminated",)))
"""Lengths with which most episodes are in two or three fragments."""


def check_whole(batches, counting):
    """Check that every row is an episode from its first step to its last, and none comes twice."""
    rows = [row[row[MASK]] for batch in batches for row in batch]
    for row in rows:
        check_counted(row.unsqueeze(0), counting)
        assert row["observation"][0, 2] == 0, "it begins in its middle"
        assert row["next", "done"][:, 0].nonzero().tolist() == [[len(row) - 1]], "it does not end where the row ends"
    ids = [int(row[IDS].unique()) for row in rows]
    assert len(set(ids)) == len(ids)


def drawn_though_envs_raise(collector, n):
    batches, raised = [], 0
    while len(batches) < n:
        try:
            batches.append(collector.next())
        except EnvBroke:
            raised += 1
    return batches, raised


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_whole_episodes(kind, place):
    with fleet(kind, numbered(counting=SHORT), backend=place, trajs_per_batch=3, total_frames=200) as collector:
        batches = list(collector)
        stats = collector.stats()
        with pytest.raises(TypeError):
            len(collector)
    assert {batch.shape[0] for batch in batches} == {3}
    check_whole(batches, SHORT)
    assert stats["frames"] == sum(int(batch[MASK].sum()) for batch in batches) >= 200
    assert stats["frames"] + stats["frames_discarded"] == stats["worker_frames"]


# ---- frames that are missing


@pytest.mark.parametrize("random_frames", [0, 30])
@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_have_no_holes_when_envs_raise(kind, prefetch, random_frames):
    faults = {env: [Fault("raise", every=every)] for env, every in enumerate((8, 31, 23, 29))}
    sources = [CountingEnvs(LONGER, faults, first) for first in (0, 2)]
    options = {"trajs_per_batch": 2, "prefetch": prefetch, "init_random_frames": random_frames, "backend": "inline"}
    with fleet(kind, sources, **options) as collector:
        batches, raised = drawn_though_envs_raise(collector, 12)
        stats = collector.stats()
    assert stats["env_errors"] >= raised > 5
    check_whole(batches, LONGER)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_of_lives_that_are_over_are_counted_and_not_delivered(kind, place, tmp_path):
    script = {0: [[Fault("kill", episode=1, step=2)], [Fault("exit", step=8)]], 1: [{1: [Fault("kill", step=9)]}]}
    sources = Lives(tmp_path, script, 2, LONGER).sources(2)
    with fleet(kind, sources, trajs_per_batch=3, prefetch=1, backend=place, restarts=AT_ONCE) as collector:
        batches = drawn_until(collector, lambda _: collector.stats()["restarts"] == 3) + drawn(collector, 5)
        collector.reset()
        stats = collector.stats()
    check_whole(batches, LONGER)
    assert stats["frames"] == sum(int(batch[MASK].sum()) for batch in batches)
    assert stats["frames"] + stats["frames_discarded"] == stats["worker_frames"]


# ---- batches that are complete when enough shares are in


@pytest.fixture
def gates(tmp_path):
    return [Gate.at(tmp_path / name) for name in ("first", "second")]


@pytest.fixture
def ends_early(monkeypatch):
    """Return an event that is set when a fragment is to end early."""
    end_early, event = Fragments.end_early, threading.Event()

    def end_and_tell(self, request):
        end_early(self, request)
        event.set()

    monkeypatch.setattr(Fragments, "end_early", end_and_tell)
    return event


def held(gates):
    """Return one env for each of two workers, which waits in its step 3 or 4."""
    return [lambda: Held(gates[0], at=3), lambda: Held(gates[1], at=4, number=1)]


def first_batch(collector, gates, ends_early):
    """Return the first batch, for which worker 1 ends its fragment after its step 4."""
    drawing = InThread(collector.next)
    for gate in gates:
        gate.await_arrival()
    gates[0].open()
    assert ends_early.wait(DEADLINE_S)
    gates[1].open()
    return drawing.join().value


@pytest.mark.parametrize("place", ["thread", "process"])
def test_enough_shares_end_the_others_at_their_next_step(place, gates, ends_early):
    options = {"envs_per_worker": 1, "preemptive_threshold": 0.5, "frames_per_batch": 20, "backend": place}
    with fleet(sources=held(gates), **options) as collector:
        first = first_batch(collector, gates, ends_early)
        later = drawn(collector, 2)
        stats = collector.stats()
    assert first.shape == (2, 1, 10)
    assert first[MASK].sum(-1).tolist() == [[10], [4]]
    assert first[IDS][1, 0].tolist() == [1 << 47] * 4 + [-1] * 6
    assert not first["observation"][1, 0, 4:].any()
    for batch in later:
        assert batch.shape == (2, 1, 10)
        assert batch[MASK].any(-1).all()
    assert stats["frames"] == sum(int(batch[MASK].sum()) for batch in [first, *later])
    check_lives([first, *later], LONG)


@pytest.mark.parametrize(("options", "lengths"), [({}, [10, 10]), ({"cat_results": -1}, [10, 4])], ids=str)
def test_fragments_written_to_a_buffer_are_masked_or_cut_too(options, lengths, gates, ends_early):
    buffer = Memory()
    options |= {"envs_per_worker": 1, "preemptive_threshold": 0.5, "frames_per_batch": 20, "replay_buffer": buffer}
    with fleet(sources=held(gates), backend="thread", **options) as collector:
        assert first_batch(collector, gates, ends_early) is None
        assert collector.stats()["frames"] == 14
    assert [td.shape for td in buffer.written] == [(1, length) for length in lengths]
    assert [int(td[MASK].sum()) for td in buffer.written] == [10, 4]
    check_lives(buffer.written, LONG)


@pytest.mark.parametrize(("threshold", "shares"), [(0.0, 1), (1.0, 10)])
def test_thresholds_of_nothing_and_all(threshold, shares):
    with fleet(preemptive_threshold=threshold, backend="inline", frames_per_batch=40) as collector:
        batches = drawn(collector, 3)
    assert {count for batch in batches for count in batch[MASK].sum(-1).reshape(-1).tolist()} == {shares}
    check_lives(batches, LONG)
