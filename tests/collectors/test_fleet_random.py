"""The random beginning of a collection with many workers."""

import pytest
from fleet_toys import KINDS, LONG, PLACES, Level, drawn, drawn_until, fleet

from swath.testing import Fault, Lives, check_lives

pytestmark = pytest.mark.usefixtures("fork_server")


def is_random(batch):
    """Whether other actions are in it than those of `Level(2)`."""
    return batch["action"].unique().tolist() != [2]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_exactly_the_first_batches_asked_for_are_random(kind, place):
    with fleet(kind, policy=Level(2), init_random_frames=50, prefetch=1, backend=place, total_frames=120) as collector:
        batches = list(collector)
    frames = batches[0].numel()
    assert sum(map(is_random, batches)) == -(-50 // frames)
    if kind == "sync":
        assert list(map(is_random, batches)) == [True] * 3 + [False] * 3


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_as_much_is_random_whoever_dies(kind, prefetch, tmp_path):
    script = {0: [[Fault("exit", step=8)], [Fault("exit", step=3)]], 1: [{1: [Fault("exit", step=13)]}]}
    sources = Lives(tmp_path, script, 2, LONG).sources(2)
    options = {"init_random_frames": 60, "prefetch": prefetch}
    with fleet(kind, sources, Level(2), **options) as collector:
        batches = drawn_until(collector, lambda _: collector.stats()["restarts"] == 3)
        while sum(map(is_random, batches)) < (3 if kind == "sync" else 6):  # a worker may be slow to come back
            batches.append(collector.next())
        batches += drawn(collector, 8)
    check_lives(batches, LONG)
    randomly = list(map(is_random, batches))
    if kind == "sync":
        assert randomly == [True] * 3 + [False] * (len(batches) - 3)
        for batch in batches[3:]:
            assert batch["action"].unique().tolist() == [2], "a share is random, and others are not"
    else:
        assert sum(randomly) == 6
