"""Batches that are complete when enough shares are in."""

import threading

import pytest
from collector_toys import IDS, LONG, MASK, Held, InThread, Memory, drawn, fleet

from swath.collectors.gather import Fragments
from swath.testing import check_lives
from toys import DEADLINE_S, Gate

pytestmark = pytest.mark.usefixtures("fork_server")


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
