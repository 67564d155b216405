"""What must not happen: the peer's defects, by their numbers, and what holds instead of each, wherever workers live."""

import inspect

import cloudpickle
import defect_toys
import defects_of_sets as sets
import defects_of_workers as here
import pytest
import toy_rollout_worker

import ray_cluster
from toys import Gate

pytestmark = pytest.mark.usefixtures("warm_processes")

APART = ("process", "ray")
ANYWHERE = ("inline", *APART)
ROWS = {
    "R1": [(sets.a_kill_while_sampling, APART)],
    "R2": [(sets.a_function_that_raises, ANYWHERE), (sets.an_env_that_raises, ANYWHERE)],
    "R3": [(sets.a_call_that_is_late, APART)],
    "R5": [(sets.old_weights_after_new_ones, APART)],
    "R10": [(sets.a_policy_that_raises, ANYWHERE)],
    "R12": [(sets.seeds_that_are_shared, ANYWHERE), (here.starts_that_are_repeated, None)],
    "R13": [(here.short_episodes_in_too_great_number, None)],
    "R14": [(here.memory_that_grows, None)],
    "R19": [(sets.a_replacement_that_does_not_know_it, APART)],
    "state": [(here.a_look_that_changes_what_it_looks_at, None)],
    "removal": [(here.a_removal_that_kills, None)],
    "R4": [(sets.an_end_that_waits_for_who_hangs, APART)],  # the set is stopped: the last row
}
"""Rows that no other test of one worker or one set holds."""

EVERYWHERE = [
    pytest.param(defect, place, id=f"{row}-{defect.__name__}-{place or 'here'}")
    for place in (None, *ANYWHERE)
    for row, defects in ROWS.items()
    for defect, places in defects
    if place in (places or (None,))
]


@pytest.fixture(scope="module")
def set_at():
    """Gives the set of a place, one for all rows."""
    modules, kept = [defect_toys, sets, toy_rollout_worker], {}
    for module in modules:
        cloudpickle.register_pickle_by_value(module)

    def of(place):
        if place == "ray":
            ray_cluster.up()
        if place not in kept:
            kept[place] = defect_toys.made(place)
        return kept[place]

    yield of
    for made in kept.values():
        made.stop()
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.parametrize(("defect", "place"), EVERYWHERE)
def test_it_does_not_happen(defect, place, set_at, tmp_path):
    takes, given = inspect.signature(defect).parameters, {}
    if "workers" in takes:
        given["workers"] = set_at(place)
    if "gate" in takes and place in APART:
        given["gate"] = Gate.at(tmp_path / "gate")
    defect(**given)
