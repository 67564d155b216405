"""When workers are asked for more."""

import pytest
from fleet_toys import drawn, fleet
from writing_toys import FileBuffer


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("prefetch", "busy"), [(0, False), (1, True)])
def test_workers_that_are_asked_ahead_do_not_wait_for_the_copy_of_their_fragments(kind, prefetch, busy, monkeypatch):
    with fleet(kind, backend="inline", prefetch=prefetch) as collector:
        collection = collector.collection
        make, seen = collection.joiner.batch, []

        def batch(shares, bodies):
            seen.append({share.worker for share in shares} <= collection.group.out_by_worker().keys())
            return make(shares, bodies)

        monkeypatch.setattr(collection.joiner, "batch", batch)
        drawn(collector, 3)
    assert seen == [busy] * 3


@pytest.mark.parametrize(("prefetch", "busy"), [(0, False), (1, True)])
@pytest.mark.parametrize("written", [False, True])
def test_facts_say_which_workers_have_not_answered_yet(prefetch, busy, written, tmp_path):
    buffer = FileBuffer(tmp_path) if written else None
    with fleet("sync", backend="inline", prefetch=prefetch, replay_buffer=buffer) as collector:
        drawn(collector, 1)
        facts = collector.stats("per_worker")
    assert [facts[f"worker_{worker}/busy"] for worker in range(collector.num_workers)] == [busy] * collector.num_workers
