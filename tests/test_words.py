"""Articles of names that may be anything."""

import pytest

from swath.words import article, kind_of


@pytest.mark.parametrize(
    "name", ["int", "ndarray", "Upright", "Unidentified", "_Env", "UnevenEnv", "RLModule", "MLP", "LSTM", "NDArray"]
)
def test_names_that_begin_as_if_with_a_vowel_are_behind_an(name):
    assert article(name) == f"an {name}"


@pytest.mark.parametrize(
    "name", ["dict", "str", "UnityEnv", "UserEnv", "URLEnv", "OneHot", "RayCollector", "SACPolicy", "_Box", ""]
)
def test_all_others_are_behind_a(name):
    assert article(name) == f"a {name}"


def test_a_value_is_said_to_be_of_its_class():
    assert (kind_of(3), kind_of({}), kind_of(None)) == ("an int", "a dict", "a NoneType")
