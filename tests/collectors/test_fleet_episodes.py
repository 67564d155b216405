"""Batches of whole episodes, from many workers."""

import pytest
from collector_toys import AT_ONCE, IDS, KINDS, MASK, PLACES, drawn, drawn_until, fleet, numbered

from swath.testing import Counting, CountingEnvs, EnvBroke, Fault, Lives, Script, check_counted

pytestmark = pytest.mark.usefixtures("fork_server")

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
