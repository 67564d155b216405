"""What can be asked of an evaluation."""

import math

import numpy as np
import pytest
import torch

from swath.evaluate.request import EvalLimits, EvalRequest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_steps": 0}, "max_steps=0"),
        ({"max_steps": -5}, "max_steps=-5"),
        ({"max_steps": 2.0}, "max_steps=2.0"),
        ({"max_steps": True}, "max_steps=True"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"timeout_s": math.inf}, "timeout_s=inf"),
        ({"timeout_s": math.nan}, "timeout_s=nan"),
        ({"timeout_s": "soon"}, "timeout_s='soon'"),
        ({"timeout_s": True}, "timeout_s=True"),
    ],
)
def test_limits_out_of_range_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        EvalLimits(**options)


@pytest.mark.parametrize("options", [{"seed": 1.5}, {"seed": "x"}, {"step": 1.5}, {"step": None}])
def test_seed_and_step_are_integers(options):
    with pytest.raises(TypeError, match="must be an integer"):
        EvalRequest(**options)


def test_integers_of_numpy_and_torch_become_pythons():
    request = EvalRequest(seed=np.int64(2**62), step=torch.tensor(3))
    assert (request.seed, request.step) == (2**62, 3)
    assert {type(request.seed), type(request.step)} == {int}


def test_nothing_asked_is_ten_episodes_without_exploration_from_root_zero():
    request = EvalRequest()
    assert (request.stop.num_trajectories, request.seed, request.exploration_type.name) == (10, 0, "DETERMINISTIC")
    assert request.limits.max_steps is None
