"""Watching for NaN and infinities."""

import numpy as np
import pytest
from policy_toys import observed, spec_of

from swath.errors import NonFinite
from swath.rollout.policies.binding import bind
from swath.rollout.policies.calling import Binding, Finite, require_finite


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 2)])
def test_the_first_env_that_is_not_finite_is_named(value, shape):
    leaf = np.zeros(shape)
    leaf[2], leaf.reshape(3, -1)[1, -1] = value, value
    with pytest.raises(
        NonFinite, match=r"the 'it' is not finite in env 1: .*; look for a diverged network or env state"
    ):
        require_finite("the", ["it"], [leaf])


def test_a_checked_policy_names_what_is_not_finite():
    spec = spec_of()
    observation = observed(spec)
    policy = bind(lambda x: {"action": x[..., 0].long(), "value": 1 / x[..., 1]}, spec, observation, Binding())
    checked = Finite(policy, ["observation"])
    checked(observation)
    observation[0][1, 1] = 0
    with pytest.raises(NonFinite, match="policy output 'value' is not finite in env 1"):
        checked(observation)
    observation[0][0, 3] = np.nan
    with pytest.raises(NonFinite, match="observation 'observation' is not finite in env 0"):
        checked(observation)
