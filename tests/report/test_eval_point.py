from math import nan

import pytest

from swath.report.eval_point import EvalPoint, point_of

FACTS = {"reward": 475.3, "reward_ci_low": 451.0, "reward_ci_high": 498.0, "num_episodes": 20, "step": 512}


def under(prefix, facts=FACTS):
    return {f"{prefix}/{name}": value for name, value in facts.items()}


@pytest.mark.parametrize("prefix", ["eval", "test/greedy"])
def test_an_evaluation_is_found_under_any_prefix(prefix):
    assert point_of(under(prefix)) == EvalPoint(512, 475.3, 451.0, 498.0, episodes=20)


def test_a_metric_of_the_user_s_is_not_taken_for_the_mean():
    assert point_of({**under("eval/x", {"reward": 1.0}), **under("eval")}).mean == 475.3


def test_facts_without_a_mean_tell_of_no_evaluation():
    assert point_of({"accepted": 1, "reward": 3.0}) is None


def test_an_evaluation_in_words_has_its_interval_if_there_is_one():
    assert str(EvalPoint(61_440, 475.345, 451.2, 498.04, episodes=20)) == (
        "475.3 [451.2, 498.0], at step 61,440, 20 episodes"
    )
    assert str(EvalPoint(0, 475.345, nan, nan, episodes=1)) == "475.3, at step 0, 1 episode"
