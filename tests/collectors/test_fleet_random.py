"""The random beginning of a collection with many workers."""

import pytest
import torch
from fleet_toys import IDS, KINDS, LONG, PLACES, InThread, Level, drawn, drawn_until, fleet

from swath.testing import CountingEnvs, EnvBroke, Fault, Lives, check_lives
from swath.workers.local import Kept

pytestmark = pytest.mark.usefixtures("nursery")


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_batch_that_is_lost_is_random_again(kind, tmp_path):
    flag = tmp_path / "first"

    def breaks_once():
        if not flag.exists():
            flag.touch()
            raise ArithmeticError("once")

    options = {"init_random_frames": 10, "pre_collect_hook": breaks_once, "backend": "inline"}
    with fleet(kind, policy=Level(2), **options) as collector:
        with pytest.raises(ArithmeticError):
            collector.next()
        randomly = list(map(is_random, drawn(collector, 4)))
    assert sum(randomly) == 1
    assert kind == "async" or randomly[0], "the fragment of the other worker is there, and the lost one asked for anew"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_as_much_is_random_whoever_dies(kind, prefetch, place, tmp_path):
    script = {0: [[Fault("exit", step=8)], [Fault("exit", step=3)]], 1: [{1: [Fault("exit", step=13)]}]}
    sources = Lives(tmp_path, script, 2, LONG).sources(2)
    options = {"init_random_frames": 60, "prefetch": prefetch, "backend": place}
    with fleet(kind, sources, Level(2), **options) as collector:
        batches = drawn_until(collector, lambda _: collector.stats()["restarts"] == 3) + drawn(collector, 8)
    check_lives(batches, LONG)
    randomly = list(map(is_random, batches))
    if kind == "sync":
        assert randomly == [True] * 3 + [False] * (len(batches) - 3)
        for batch in batches[3:]:
            assert batch["action"].unique().tolist() == [2], "a share is random, and others are not"
    else:
        assert sum(randomly) == 6


def test_a_random_share_is_not_made_up_for_by_one_of_the_policy():
    faults = {0: [Fault("raise", step=8)]}
    sources = [CountingEnvs(LONG, faults), CountingEnvs(LONG, first=2)]
    with fleet(sources=sources, policy=Level(2), init_random_frames=40, prefetch=2, backend="inline") as collector:
        batches = drawn(collector, 1)
        with pytest.raises(EnvBroke):
            collector.next()
        batches += drawn(collector, 3)
    randomly = [[is_random(share) for share in batch] for batch in batches]
    assert randomly == [[True, True]] * 2 + [[False, False]] * 2
    for worker in range(2):
        ids = torch.cat([batch[IDS][worker].reshape(-1) for batch in batches])
        assert ids.sort().values.unique().tolist() == ids.unique_consecutive().unique().tolist()
    check_lives(batches, LONG, gaps=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_batch_that_a_reset_takes_from_a_draw_is_made_up_for_once(kind, monkeypatch):
    opened, resets = Kept.open, iter([True])

    def reset_first(self):
        if next(resets, False):
            InThread(collector.reset).join()
        return opened(self)

    monkeypatch.setattr(Kept, "open", reset_first)
    collector = fleet(kind, policy=Level(2), init_random_frames=10, backend="inline")
    with collector:
        assert sum(map(is_random, drawn(collector, 6))) == 1
        assert collector.stats()["frames_discarded"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_batch_that_is_delivered_in_spite_of_a_reset_is_not_made_up_for(kind):
    resets = iter([True])

    def postproc(batch):
        if next(resets, False):
            InThread(collector.reset).join()
        return batch

    collector = fleet(kind, policy=Level(2), init_random_frames=10, postproc=postproc, backend="inline")
    with collector:
        assert list(map(is_random, drawn(collector, 6))) == [True] + [False] * 5
