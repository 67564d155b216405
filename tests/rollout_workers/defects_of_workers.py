"""What must not happen in one worker, its batches and its filters."""

import gc
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from agent_toys import Counter, Troupe
from defect_toys import DEFAULT, Armed
from sampling_toys import LONG, counting_worker, made_of

from swath.rollout_workers import (
    DefaultCallbacks,
    PPOTorchPolicy,
    RandomPolicy,
)
from swath.testing.counting import Counting, Script
from swath.testing.envs import BasicMultiAgent


def starts_that_are_repeated():
    with made_of(lambda: Armed(None), RandomPolicy, batch_mode="complete_episodes", seed=3) as worker:
        batches = [worker.sample() for _ in range(4)]
    starts = [row[1] for batch in batches for row in batch["obs"][batch["t"] == 0].tolist()]
    assert len(set(starts)) == len(starts) >= 4


def short_episodes_in_too_great_number():
    counting = Counting(script=Script((10, 100), ("terminated",)))
    for mode in ("truncate_episodes", "complete_episodes"):
        settings = {"num_envs_per_env_runner": 16, "rollout_fragment_length": 35, "batch_mode": mode}
        worker, _ = counting_worker(counting, **settings)
        with worker:
            batches = [worker.sample() for _ in range(40)]
            told = [metrics.episode_length for metrics in worker.get_metrics()]
        assert set(told) == {10, 100}
        assert np.mean(told) == pytest.approx(55, abs=3)
        if mode == "complete_episodes":
            lengths = [len(part) for batch in batches for part in batch.split_by_episode()]
            assert np.mean(lengths) == pytest.approx(55, abs=3)


def _grown(worker, begin=4, calls=8, windows=3):
    """Bytes held more after so many calls: the least of some windows, for other threads here hold memory, too."""
    tracemalloc.start()
    try:
        for _ in range(begin):
            worker.sample()
        held = [_held()]
        for _ in range(windows):
            for _ in range(calls):
                worker.sample()
            held.append(_held())
        return min(later - earlier for earlier, later in pairwise(held))
    finally:
        tracemalloc.stop()


def _held():
    gc.collect()  # also empties Python's stores of tuples to use again, which grow with the first calls
    return tracemalloc.get_traced_memory()[0]


class Looking(DefaultCallbacks):
    def on_episode_step(self, *, episode, **kwargs):
        assert episode.length


def memory_that_grows():
    bytes_of_a_number_per_step = 8 * 3 * 64 * 8
    for settings in ({"callbacks_class": Looking}, {"observation_filter": "MeanStdFilter"}):
        worker, _ = counting_worker(LONG, rollout_fragment_length=64, policy=RandomPolicy, **settings)
        with worker:
            assert _grown(worker) < bytes_of_a_number_per_step
    troupe = Troupe(lambda: _Endless(3), rollout_fragment_length=64, policies={DEFAULT: _Answering})
    assert _grown(troupe) < bytes_of_a_number_per_step


class _Endless(BasicMultiAgent):
    def step(self, action_dict):
        step = super().step(action_dict)
        for env in self.envs.values():
            env.i = 0
        return step


class _Answering(Counter):
    def compute_actions(self, *args, **kwargs):
        self.asked.clear()
        return super().compute_actions(*args, **kwargs)


def a_look_that_changes_what_it_looks_at():
    settings = {"observation_filter": "MeanStdFilter", "model": {"fcnet_hiddens": [4]}, "seed": 3}
    with (
        made_of(lambda: Armed(None), PPOTorchPolicy, **settings) as one,
        made_of(lambda: Armed(None), PPOTorchPolicy, **settings) as other,
    ):
        for worker in (one, other):
            worker.learn_on_batch(worker.sample())
        state = one.get_state()
        for policy in state["policy_states"].values():
            for array in policy["weights"].values():
                array[...] = np.nan
        state["global_vars"]["timestep"] = -1
        state["filters"][DEFAULT].reset_buffer()
        assert one.filters[DEFAULT].buffer.n == other.filters[DEFAULT].buffer.n > 0
        assert one.get_global_vars() == other.get_global_vars()
        theirs = other.sample()
        for name, column in one.sample().items():
            np.testing.assert_array_equal(column, theirs[name], err_msg=name)


def a_removal_that_kills():
    two = {"p0": Counter, "p1": Counter}
    troupe = Troupe(lambda: BasicMultiAgent(2), 1, two, lambda agent, episode: f"p{agent}", rollout_fragment_length=20)
    troupe.sample()
    troupe.remove_policy(policy_id="p1", policy_mapping_fn=lambda *_, **__: "p0")
    batches = [troupe.sample() for _ in range(2)]
    assert batches[0]["p1"]["t"].tolist() == [20, 21, 22, 23, 24], "it acts until its episode ends"
    assert list(batches[1].policy_batches) == ["p0"]
