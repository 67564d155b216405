"""Seeds: unique, in range, and a function of their inputs alone."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swath.seeds import LARGEST, derive

ROLES = ["env", "policy", "global", "next"]
PER_EPISODE = ["evaluation", "noise"]


def test_thousands_of_seeds_of_one_root_are_all_different():
    seeds = [derive(7, role, env, life) for role in [*ROLES, "bootstrap"] for env in range(64) for life in range(16)]
    seeds += [derive(7, role, 0, episode) for role in PER_EPISODE for episode in range(4000)]
    assert len(set(seeds)) == len(seeds) == 5 * 64 * 16 + 2 * 4000


def test_the_next_root_goes_on_without_overlap():
    seeds, root = [], 1
    for _ in range(20):
        seeds += [derive(root, "env", env) for env in range(8)]
        root = derive(root, "next")
    assert len(set(seeds)) == len(seeds)


@given(
    st.integers(),
    st.tuples(st.sampled_from(ROLES), st.integers(0, 2**16 - 1), st.integers(0, 2**12 - 1)),
    st.tuples(st.sampled_from(PER_EPISODE), st.just(0), st.integers(0, 2**28 - 1)),
)
def test_every_seed_is_legal_and_different_inputs_give_different_seeds(root, first, second):
    assert 1 <= derive(root, *first) <= LARGEST
    assert derive(root, *first) == derive(root, *first)
    assert derive(root, *first) != derive(root, *second)


def test_seeds_are_the_same_in_another_process():
    code = "from swath.seeds import derive; print(derive(3, 'env', 5, 2), derive(-1, 'evaluation', 0, 9))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split() == [str(derive(3, "env", 5, 2)), str(derive(-1, "evaluation", 0, 9))]


@pytest.mark.parametrize(
    ("role", "env", "number"),
    [
        ("env", 2**16, 0),
        ("env", -1, 0),
        ("policy", 0, 2**12),
        ("env", 0, -1),
        ("evaluation", 1, 0),
        ("noise", 0, 2**28),
    ],
)
def test_a_number_for_which_seeds_would_not_be_unique_is_an_error_that_names_the_range(role, env, number):
    with pytest.raises(ValueError, match=rf"no seed for role='{role}', env={env}, number={number}: env < \d+"):
        derive(0, role, env, number)
