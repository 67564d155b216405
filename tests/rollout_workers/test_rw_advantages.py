"""One pass over a fragment against the functions for one chunk, applied chunk by chunk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.rollout_workers import compute_advantages
from swath.rollout_workers.postprocessing import Chunks, Estimator, estimate

WAYS = [(True, True), (False, True), (False, False)]


@st.composite
def fragments(draw):
    """Chunks of all lengths in rows `[*B, T]`, ended by chance, and the generator that drew them."""
    shape = draw(st.sampled_from([(1, 1), (1, 9), (3, 1), (2, 7), (4, 33), (12,), (2, 2, 5)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    terminated = rng.random(shape) < draw(st.sampled_from([0.0, 0.2, 1.0]))
    ends = terminated | (rng.random(shape) < draw(st.sampled_from([0.0, 0.3])))
    ends[..., -1] = True
    rewards, values = rng.normal(size=(2, *shape)).astype(np.float32) * 10
    return Chunks(rewards, values, terminated, ends), rng


def slices_of(chunks):
    """Each chunk by its row and where it begins and ends."""
    length = chunks.ends.shape[-1]
    for row in np.ndindex(chunks.ends.shape[:-1]):
        begin = 0
        for t in range(length):
            if chunks.ends[row][t]:
                yield row, slice(begin, t + 1)
                begin = t + 1


@pytest.mark.parametrize(("use_gae", "use_critic"), WAYS)
@settings(deadline=None)
@given(fragments(), st.sampled_from([0.0, 0.9, 0.99, 1.0]), st.sampled_from([0.0, 0.95, 1.0]))
def test_one_pass_equals_chunk_by_chunk(use_gae, use_critic, drawn, gamma, lmbda):
    chunks, rng = drawn
    estimator = Estimator(gamma, lmbda, use_gae, use_critic)
    open_values = rng.normal(size=int(chunks.open_ends.sum())).astype(np.float32)
    bootstrapped = chunks.bootstrapped(open_values)
    found = estimate(chunks, bootstrapped, estimator)
    left = iter(open_values)
    for row, part in slices_of(chunks):
        batch = {"rewards": chunks.rewards[row][part], "vf_preds": chunks.values[row][part]}
        last = 0.0 if chunks.terminated[row][part][-1] else next(left)
        compute_advantages(batch, last, gamma, lmbda, use_gae, use_critic)
        np.testing.assert_array_equal(bootstrapped[row][part], [*batch["vf_preds"][1:], np.float32(last)])
        np.testing.assert_allclose(found.advantages[row][part], batch["advantages"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.value_targets[row][part], batch["value_targets"], rtol=1e-5, atol=1e-5)
    assert next(left, None) is None
    assert found.advantages.dtype == found.value_targets.dtype == bootstrapped.dtype == np.float32


def test_without_a_critic_no_values_are_needed():
    rewards, no, ends = np.array([1.0, 2.0]), np.zeros(2, dtype=bool), np.array([False, True])
    chunks = Chunks(rewards, None, no, ends)
    after = chunks.bootstrapped(np.array([4.0]))
    found = estimate(chunks, after, Estimator(0.5, 1.0, use_gae=False, use_critic=False))
    assert (after.tolist(), found.advantages.tolist(), found.value_targets.tolist()) == ([0, 4], [3, 4], [0, 0])


def test_the_inputs_are_not_written_and_nothing_is_shared_with_them():
    arrays = [np.ones((2, 3), dtype=np.float32), np.ones((2, 3), dtype=np.float32)]
    ends = np.array([[False, False, True]] * 2)
    for array in (*arrays, ends):
        array.setflags(write=False)
    chunks = Chunks(*arrays, np.zeros((2, 3), dtype=bool), ends)
    found = estimate(chunks, chunks.bootstrapped(np.zeros(2)), Estimator())
    assert not any(np.shares_memory(out, array) for out in found for array in arrays)
    assert all(out.flags.writeable for out in found)


@pytest.mark.parametrize("missing", [(), ("use_critic",)])
def test_the_estimate_is_read_from_a_policys_config(missing):
    config = {"gamma": 0.7, "lambda": 0.6, "use_gae": False, "use_critic": True, "other": 1}
    for name in missing:
        del config[name]
    assert Estimator.of(config) == Estimator(0.7, 0.6, use_gae=False, use_critic=True)
