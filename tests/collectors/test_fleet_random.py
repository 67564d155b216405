"""The random beginning of a collection with many workers."""

import pytest
from fleet_toys import KINDS, PLACES, Level, fleet

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
