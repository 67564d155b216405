"""Passes over a batch in minibatches."""

import numpy as np
import pytest
from gymnasium import spaces

from swath.rollout_workers import Policy, SampleBatch
from swath.rollout_workers.policies.learning import learn_in_passes, standardized


class Noting(Policy):
    """Notes what it is to learn from."""

    def __init__(self):
        super().__init__(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), {})
        self.seen = []

    def compute_actions(self, obs_batch, *args, **kwargs):
        raise NotImplementedError

    def learn_on_batch(self, samples):
        self.seen.append(samples)
        n = len(self.seen)
        return {"learner_stats": {"n": n, "rows": np.array([len(samples), n])}, "model": {}, "words": f"{n}"}


def rows(n=50):
    return SampleBatch(
        {"a": np.arange(n), "b": np.arange(n, dtype=np.float32) * 2, "infos": [{"i": i} for i in range(n)]}
    )


def test_each_epoch_has_each_row_once_in_another_order():
    policy, batch = Noting(), rows()
    info = learn_in_passes(policy, batch, 3, 20, generator=np.random.default_rng(0))
    assert [len(part) for part in policy.seen] == [20, 20, 10] * 3
    orders = [np.concatenate([part["a"] for part in policy.seen[i : i + 3]]).tolist() for i in (0, 3, 6)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({*map(tuple, orders), tuple(range(50))}) == 4
    for part in policy.seen:
        assert (part["b"] == 2 * part["a"]).all()
        assert [info_["i"] for info_ in part["infos"]] == part["a"].tolist()
    assert batch["a"].tolist() == list(range(50))
    assert info["learner_stats"]["n"] == 8
    assert info["learner_stats"]["rows"].tolist() == [pytest.approx(50 / 3), 8]
    assert (info["model"], info["words"]) == ({}, "9")


def test_without_a_size_it_is_the_whole_batch_each_time():
    policy = Noting()
    learn_in_passes(policy, rows(), 2)
    assert [len(part) for part in policy.seen] == [50, 50]


def test_fields_are_standardised_on_a_copy():
    policy, batch = Noting(), rows()
    learn_in_passes(policy, batch, 1, None, ("a", "b"))
    for name in ("a", "b"):
        column = policy.seen[0][name]
        assert column.dtype == np.float32
        assert (column.mean(), column.std()) == pytest.approx((0, 1), abs=1e-6)
    assert batch["b"].tolist() == rows()["b"].tolist()
    assert standardized(np.array([1.0, 1.0, 1.0 + 3e-5])) == pytest.approx([-0.1, -0.1, 0.2])
    with pytest.raises(KeyError, match="no column 'nope'"):
        learn_in_passes(policy, batch, 1, None, ("nope",))


def test_sequences_stay_together():
    policy, batch = Noting(), rows(10)
    batch["seq_lens"], batch["state_in_0"] = np.array([2, 3, 1, 4], np.int32), np.array([0.0, 2, 5, 6])
    learn_in_passes(policy, batch, 4, 4, ("b",), np.random.default_rng(0))
    seen = []
    for part in policy.seen:
        assert part.zero_padded
        for i, (length, state) in enumerate(zip(part["seq_lens"], part["state_in_0"], strict=True)):
            start = i * part.max_seq_len
            assert part["a"][start : start + length].tolist() == list(range(int(state), int(state) + length))
            seen.append(int(state))
    assert sorted(seen) == sorted([0, 2, 5, 6] * 4)
    assert batch["a"].tolist() == list(range(10))
