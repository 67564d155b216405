import math

import pytest

from swath.learn import PPOConfig

BAD = [
    *[("epochs", value, "a whole number, 1 or more") for value in (0, 2.5, True)],
    ("minibatch_size", -1, "a whole number, 1 or more"),
    ("total_frames", 0, "a whole number, 1 or more"),
    *[("learning_rate", value, "above 0 and finite") for value in (0, -1e-3, math.inf, math.nan)],
    ("clip", 0, "above 0 and finite"),
    ("clip_value", 0.0, "above 0 and finite"),
    ("max_grad_norm", 0, "above 0 and finite"),
    *[(name, -0.1, "0 or more and finite") for name in ("value_coef", "entropy_coef")],
    *[(name, 1.01, "between 0 and 1") for name in ("gamma", "gae_lambda", "final_lr_fraction")],
    ("gamma", math.nan, "between 0 and 1"),
    ("gamma", None, "between 0 and 1"),
    ("clip", None, "above 0 and finite"),
    ("learning_rate", True, "above 0 and finite"),
    ("entropy_coef", "0.1", "0 or more and finite"),
]


@pytest.mark.parametrize(("name", "value", "wanted"), BAD)
def test_a_setting_out_of_range_is_refused_with_its_name_and_value(name, value, wanted):
    with pytest.raises(ValueError, match=f"PPOConfig: {name}={value!r} must be {wanted}"):
        PPOConfig(**{name: value})


def test_the_rate_falls_along_a_line_and_stays_at_its_end():
    config = PPOConfig(total_frames=1000, final_lr_fraction=0.1)
    assert [config.remaining(frames) for frames in (0, 500, 1000, 2000)] == pytest.approx([1, 0.55, 0.1, 0.1])


def test_without_an_end_the_rate_stays():
    assert PPOConfig().remaining(10**9) == 1
    assert PPOConfig(clip_value=0.2).clip_value == 0.2
