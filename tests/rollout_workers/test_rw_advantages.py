"""One pass over a fragment against the functions for one chunk, applied chunk by chunk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.rollout_workers import compute_advantages
from swath.rollout_workers.postprocessing import Estimator, estimate, values_after


@pytest.mark.parametrize(("use_gae", "use_critic"), [(True, True), (False, True), (False, False)])
@settings(deadline=None)
@given(n=st.integers(1, 40), share=st.sampled_from([0.0, 0.2, 1.0]), seed=st.integers(0, 2**32))
def test_one_pass_equals_chunk_by_chunk(use_gae, use_critic, n, share, seed):
    rng = np.random.default_rng(seed)
    gamma, lmbda = rng.choice([0.0, 0.9, 1.0]), rng.choice([0.0, 0.95, 1.0])
    terminated = rng.random(n) < share
    ends = terminated | (rng.random(n) < 0.2) | (np.arange(n) == n - 1)
    (rewards, values), open_ends = rng.normal(size=(2, n)).astype(np.float32) * 10, ends & ~terminated
    open_values = rng.normal(size=open_ends.sum()).astype(np.float32)
    for array in (rewards, values, ends):
        array.setflags(write=False)
    after = values_after(values, ends, open_ends, open_values)
    found = estimate(rewards, values, after, ends, Estimator(gamma, lmbda, use_gae, use_critic))
    assert found[0].dtype == found[1].dtype == after.dtype == np.float32
    left, begin = iter(open_values), 0
    for stop in np.flatnonzero(ends) + 1:
        batch = {"rewards": rewards[begin:stop], "vf_preds": values[begin:stop]}
        last = 0.0 if terminated[stop - 1] else next(left)
        compute_advantages(batch, last, gamma, lmbda, use_gae, use_critic)
        np.testing.assert_array_equal(after[begin:stop], [*batch["vf_preds"][1:], np.float32(last)])
        for one, name in zip(found, ("advantages", "value_targets"), strict=True):
            np.testing.assert_allclose(one[begin:stop], batch[name], rtol=1e-5, atol=1e-5)
        begin = stop
    assert next(left, None) is None


def test_whether_there_is_a_critic_need_not_be_said():
    config = {"gamma": 0.7, "lambda": 0.6, "use_gae": False, "other": 1}
    assert Estimator.of(config) == Estimator.of({**config, "use_critic": True}) == Estimator(0.7, 0.6, use_gae=False)
