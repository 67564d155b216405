"""The laws of the house, each by its number, for the collector in this process."""

import pytest
import torch
from collector_toys import Memory, Stepping, collector, counting
from hypothesis import given, settings
from hypothesis import strategies as st

from swath import Collector
from swath.errors import WorkerLate
from swath.testing import CountingEnvs, EnvBroke, Fault

FAULTS = st.dictionaries(
    st.integers(0, 2),
    st.lists(
        st.builds(
            Fault,
            kind=st.sampled_from(["raise", "raise_at_reset"]),
            episode=st.integers(1, 4),
            step=st.integers(1, 4),
        ),
        max_size=3,
    ),
    max_size=3,
)


@settings(max_examples=20, deadline=None)
@given(faults=FAULTS, n=st.integers(1, 3), t=st.integers(1, 8), mode=st.sampled_from(["raise", "reset", "restart"]))
def test_law_1_and_2_batches_are_full_and_no_frame_comes_twice_whatever_breaks(faults, n, t, mode):
    envs = CountingEnvs(counting(3, 5, 1, 4), faults)
    seen, batches, raised = set(), 0, 0
    with Collector(envs, envs_per_worker=n, frames_per_batch=n * t, on_env_error=mode) as made:
        for _ in range(10):
            try:
                batch = made.next()
            except EnvBroke:
                raised += 1
                continue
            batches += 1
            assert batch.shape == (n, t)
            assert ("collector", "mask") not in batch.keys(include_nested=True)
            marks = {tuple(mark) for mark in batch["observation"].reshape(-1, 3).tolist()}
            assert len(marks) == n * t, "a frame came twice in one batch"
            assert not marks & seen, "a frame came again"
            seen |= marks
            assert torch.equal(batch["next", "observation"][..., 2], batch["observation"][..., 2] + 1)
            same_episode = batch["next", "observation"][..., :2] == batch["observation"][..., :2]
            assert bool(same_episode.all()), "a row leads from one episode into another"
        stats = made.stats()
    assert stats["frames"] == batches * n * t
    assert stats["batches"] == batches
    assert stats["env_errors"] >= raised
    assert stats["frames_discarded"] % n == 0
    if mode == "raise":
        assert stats["fragments_lost"] == stats["env_errors"] == raised


def test_law_7_every_wait_has_a_deadline_that_says_who_is_late():
    env = Stepping(at=3)
    made = collector(env, replay_buffer=Memory())
    made.start()
    assert env.inside.wait(60)
    waits = {
        "pause": lambda: made.pause(0.01).__enter__(),
        "wait": lambda: made.update_policy_weights_(wait=True, timeout_s=0.01),
        "shutdown": lambda: made.shutdown(timeout=0.01),
    }
    for wait in waits.values():
        with pytest.raises(WorkerLate, match=r"0\.01 s") as caught:
            wait()
        assert caught.value.workers == (0,)
        assert caught.value.deadline == 0.01
    env.released.set()
    made.shutdown()
