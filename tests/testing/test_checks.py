"""The checks find each kind of damage to good batches, and name the place."""

import pytest
import torch

from swath import Collector
from swath.testing import (
    Counting,
    CountingEnv,
    CountingEnvs,
    Script,
    check_by_hand,
    check_continuity,
    check_counted,
    check_flags,
    check_ids,
    joined,
    same_data,
)

COUNTING = Counting(observation="dict", script=Script((4, 6), ("terminated", "truncated")))


@pytest.fixture(scope="module")
def good():
    with Collector(CountingEnvs(COUNTING), envs_per_worker=3, frames_per_batch=30, total_frames=60) as collector:
        return joined(list(collector))


@pytest.fixture
def td(good):
    return good.clone()


def swap(td, key, first, second):
    kept = td[key][first].clone()
    td[key][first] = td[key][second]
    td[key][second] = kept


def test_good_batches_pass(td):
    check_counted(td, COUNTING)
    check_continuity(td)
    check_flags(td)
    check_ids(td)
    same_data(td, td.clone())


def lost(td):
    return torch.cat([td[:, :5], td[:, 6:]], -1)


def mixed_rows(td):
    for key in td.keys(include_nested=True, leaves_only=True):
        swap(td, key, (0, slice(7, None)), (1, slice(7, None)))
    return td


def reset_for_last(td):
    t = int(td["next", "done"][0, :, 0].nonzero()[0])
    for key in ("image", "place"):
        td["next", key][0, t] = td[key][0, t + 1]
    return td


def changed(change):
    def damage(td):
        change(td)
        return td

    return damage


REPEATED = lambda td: torch.cat([td[:, :5], td[:, 4:]], -1)
GAP = "must follow the step before, the batch has"
DAMAGE = {
    "lost": (lost, GAP),
    "repeated": (REPEATED, GAP),
    "mixed rows": (mixed_rows, GAP),
    "mixed leaves": (changed(lambda td: swap(td, "image", (0, 2), (1, 2))), "'(place|image)' has another mark than"),
    "a reset for the last": (reset_for_last, "a step from .* leads to .* the batch has"),
    "wrong action": (changed(lambda td: td["action"][2, 3].add_(1).fmod_(3)), "row 2, step 3: reward"),
    "wrong flag": (changed(lambda td: td["next", "truncated"].logical_not_()), r"\(terminated, truncated\) is"),
    "an end unseen": (changed(lambda td: td["next", "done"][0].fill_(False)), "must follow"),
    "one env twice": (lambda td: torch.cat([td, td[:1]], 0), "two rows are of the same env"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_to_counted_batches_is_found(td, damage, message):
    with pytest.raises(AssertionError, match=message):
        check_counted(damage(td), COUNTING)


def test_a_gap_is_found_whatever_the_env(td):
    for damage in (lost, REPEATED, mixed_rows):
        with pytest.raises(AssertionError, match=r"but step .* of the same episode begins with"):
            check_continuity(damage(td.clone()))


def test_flags_that_contradict_each_other_are_found(td):
    wrong = td.clone()
    wrong["next", "done"][1, 4] ^= True
    with pytest.raises(AssertionError, match=r"done is not \(terminated or truncated\), first at \(1, 4\)"):
        check_flags(wrong)
    td["terminated"][0, 0] = True
    with pytest.raises(AssertionError, match="the root entry 'terminated' is set"):
        check_flags(td)


def test_wrong_ids_are_found(td):
    ids = td["collector", "traj_ids"]
    for change in (
        lambda: ids[0, 5:].add_(1),
        lambda: ids[:].add_(ids == 4),
        lambda: swap(td, ("collector", "traj_ids"), 0, 1),
    ):
        kept = ids.clone()
        change()
        with pytest.raises(
            AssertionError, match=r"trajectory ids are not those of the episodes, first at \(\d, \d+\): \d+"
        ):
            check_ids(td)
        ids.copy_(kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda td: td.set("more", torch.zeros(td.shape)), "different entries"),
        (lambda td: td.set("action", td["action"].int()), "has the shape and dtype"),
        (lambda td: td["next", "reward"].neg_(), "'reward'. differs, first at"),
        (lambda td: td["place"][0, 0].fill_(float("nan")), "'place' differs"),
    ],
)
def test_data_that_differ_are_refused(good, td, change, message):
    change(td)
    with pytest.raises(AssertionError, match=message):
        same_data(good, td)


def test_frames_are_compared_with_those_stepped_by_hand(good):
    def again():
        return CountingEnv(1, COUNTING)

    check_by_hand(again(), None, good[1])
    for key, message in (
        ("place", r"step 0: \('place',\) is .* in a plain loop, recorded"),
        (("next", "image"), r"step 0: \('next', 'image'\) is"),
        (("next", "reward"), r"step 0: \('next', 'reward'\) is"),
        (("next", "truncated"), r"step 0: \('next', 'truncated'\) is \[False\] in a plain loop, recorded \[ True\]"),
    ):
        td = good[1].clone()
        td[key] = td[key] ^ True if td[key].dtype == torch.bool else td[key] + 1
        with pytest.raises(AssertionError, match=message):
            check_by_hand(again(), None, td)
