"""What must not happen in one worker, its batches and its filters."""

import gc
import pickle
import tracemalloc
from itertools import pairwise

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from agent_toys import Counter, Troupe
from defect_toys import DEFAULT, Armed, Fragile, made
from sampling_toys import LONG, Foreseen, counting_worker, made_of

from swath.errors import NoEffectWarning
from swath.rollout_workers import (
    AlgorithmConfig,
    DefaultCallbacks,
    MeanStdFilter,
    MultiAgentBatch,
    PPOTorchPolicy,
    RandomPolicy,
    RolloutWorker,
    SampleBatch,
)
from swath.testing.counting_env import Counting
from swath.testing.envs import BasicMultiAgent, MockEnv2
from swath.testing.faults import EnvBroke, Fault
from swath.testing.script import Script
from swath.workers.tickets import Name

RESTARTS = {"restart_failed_sub_environments": True, "delay_between_sub_environment_restarts_s": 0.0}


def one_crash_among_eight():
    worker, factory = counting_worker(LONG, {3: [Fault("raise", step=5)]}, num_envs_per_env_runner=8, **RESTARTS)
    with worker:
        batches = [worker.sample() for _ in range(3)]
    assert len(factory.made) == 9
    for env in range(8):
        steps = [row for batch in batches for row in batch["obs"][batch["obs"][:, 0] == env][:, 1:].tolist()]
        if env != 3:
            assert steps == [[0, t] for t in range(12)], "untouched"
    assert [env.closed for env in factory.made] == [1] * 9


class _Once(MockEnv2):
    """Only the first that is made can be reset, and its second step raises."""

    made = 0

    def __init__(self):
        super().__init__(9)
        _Once.made += 1
        self.number = _Once.made

    def reset(self, **kwargs):
        if self.number > 1:
            raise EnvBroke(f"the reset of env {self.number}")
        return super().reset(**kwargs)

    def step(self, action):
        if self.i == 1:
            raise EnvBroke("a step")
        return super().step(action)


def a_reset_that_always_fails():
    most, _Once.made = 1_200, 0
    worker = made_of(_Once, RandomPolicy, max_num_sub_environment_restarts=most, **RESTARTS)
    with worker, pytest.raises(EnvBroke, match=f"the reset of env {1 + most}") as raised:
        worker.sample()
    assert _Once.made == 1 + most, "more often than calls can be nested"
    assert any(f"max_num_sub_environment_restarts={most}" in note for note in raised.value.__notes__)


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


def _grown(worker, begin=4, calls=12, windows=3):
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
    bytes_of_a_number_per_step = 12 * 3 * 64 * 8
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


def metrics_that_nobody_reads():
    brief = Counting(script=Script((1,), ("terminated",)))
    worker, _ = counting_worker(brief, policy=RandomPolicy, rollout_fragment_length=3_400)
    with worker:
        with pytest.warns(UserWarning, match="were not asked for"):
            worker.sample()
        assert len(worker.get_metrics()) == 10_000
        assert worker.counters["episodes"] == 10_200


def batches_that_lose_their_order():
    batch = SampleBatch(t=np.arange(5), infos=[{"t": t} for t in range(5)], terminateds=np.zeros(5, bool))
    batch["truncateds"] = np.arange(5) == 2
    assert [part.count for part in batch.timeslices(2)] == [2, 2, 1]
    assert batch[0:0].count == 0
    assert batch["dones"].tolist() == [False, False, True, False, False]
    batch.shuffle()
    assert [info["t"] for info in batch["infos"]] == batch["t"].tolist()
    with pytest.raises(ValueError, match="t"):
        SampleBatch(t=np.arange(5), obs=np.zeros(4)).check_lengths()
    rows = {"eps_id": np.zeros(4, int), "t": np.zeros(4, int), "agent_index": np.zeros(4, int)}
    several = MultiAgentBatch({pid: SampleBatch(obs=np.arange(4), **rows) for pid in "ab"}, 1)
    assert sum(piece.agent_steps() for piece in several.timeslices(1)) == 8


def filters_that_miscount():
    drawn = np.random.default_rng(0).normal(3.0, 2.0, (50, 4))
    whole, single = MeanStdFilter((4,)), MeanStdFilter((4,))
    whole(drawn)
    for row in drawn:
        single(row)
    assert whole.rs.n == single.rs.n == 50
    np.testing.assert_allclose(whole.rs.mean, single.rs.mean, rtol=1e-6)
    np.testing.assert_allclose(whole.rs.std, single.rs.std, rtol=1e-6)
    np.testing.assert_allclose(single.rs.std, drawn.std(axis=0, ddof=1), rtol=1e-6)


class _Wide(Foreseen):
    def compute_actions(self, obs_batch, *args, **kwargs):
        return [np.float32([0.5, 3.0])] * len(obs_batch), [], {}


class _Kept(MockEnv2):
    def __init__(self):
        super().__init__(5)
        self.action_space = gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))
        self.observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
        self.got = []

    def _seen(self):
        return np.float32([self.i])

    def step(self, action):
        self.got.append(action.tolist())
        return super().step(action)


def settings_that_do_nothing():
    for settings, got in (
        ({}, [1.0, 10.0]),
        ({"normalize_actions": False}, [0.5, 3.0]),
        ({"normalize_actions": False, "clip_actions": True}, [0.5, 3.0]),
    ):
        given = {"rollout_fragment_length": 5, "clip_rewards": 7.0, "observation_filter": "MeanStdFilter", **settings}
        with made_of(_Kept, _Wide, **given) as worker:
            batch = worker.sample()
            assert worker.env.got == [got] * 5
        assert batch["rewards"].tolist() == [7.0] * 5
        assert batch["obs"].max() < 2.0, "normalised"
    with pytest.warns(NoEffectWarning, match="preprocessor_pref"):
        AlgorithmConfig().update_from_dict({"preprocessor_pref": "deepmind"})
    with pytest.raises(ValueError, match="use_lstm"):
        AlgorithmConfig().training(model={"use_lstm": True})


class _Asked(PPOTorchPolicy):
    def __init__(self, *args):
        super().__init__(*args)
        self.acted, self.valued = [], []

    def compute_values(self, input_dict):
        self.valued.append(len(input_dict["obs"]))
        return super().compute_values(input_dict)


def calls_of_the_policy_that_nobody_needs():
    worker, _ = counting_worker(LONG, num_envs_per_env_runner=8)
    with worker:
        for _ in range(3):
            worker.sample()
        assert worker.get_policy().asked == [8] * 12
    small = {"model": {"fcnet_hiddens": [4]}, "num_envs_per_env_runner": 8}
    worker, _ = counting_worker(LONG, policy=_Asked, **small)
    with worker:
        worker.sample()
        worker.sample()
        assert worker.get_policy().valued[-1] == 8, "one call for the open ends"


def a_recipe_that_lies_elsewhere():
    with made("inline") as workers:
        job = cloudpickle.loads(cloudpickle.dumps(workers._job(Name(1, 3))))
    resident = job.build()
    assert resident.run("sample", {}).count == 10
    assert resident.run(lambda worker: (worker.life, worker.recreated_worker), {}) == (3, True)
    resident.close()


def a_config_that_is_changed():
    own = AlgorithmConfig().env_runners(rollout_fragment_length=5).multi_agent(policies={"p"})
    own.multi_agent(policy_mapping_fn=lambda *_, **__: "p")
    before = pickle.dumps({name: value for name, value in own.to_dict().items() if name != "policy_mapping_fn"})
    with RolloutWorker(env_creator=Armed, default_policy_class=Fragile, config=own) as worker:
        worker.sample()
        worker.config.training(gamma=0.1)
    after = pickle.dumps({name: value for name, value in own.to_dict().items() if name != "policy_mapping_fn"})
    assert after == before
    assert not own.is_frozen


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


def a_setter_that_refuses_and_acts():
    settings = {"policies_to_train": [DEFAULT], "model": {"fcnet_hiddens": [4]}}
    with made_of(lambda: Armed(None), PPOTorchPolicy, **settings) as worker:

        def held():
            arrays = worker.get_weights()[DEFAULT].items()
            numbers = worker.get_global_vars(), worker.weights_seq_no, worker.policy_version
            ids = list(worker.policy_map), worker.get_policies_to_train(), worker.policy_mapping_fn
            return [(name, array.tolist()) for name, array in arrays], numbers, ids

        before = held()
        for refused in (
            lambda: worker.set_weights({DEFAULT: {}}, {"timestep": 3}, 4),
            lambda: worker.set_global_vars({"timestep": 3}, ["nobody"]),
            lambda: worker.set_policy_mapping_fn(3),
            lambda: worker.set_is_policy_to_train(DEFAULT),
            lambda: worker.add_policy("new", RandomPolicy, policies_to_train=3),
            lambda: worker.remove_policy(policies_to_train=3),
            lambda: worker.remove_policy(policy_mapping_fn=3),
            lambda: worker.apply_gradients([1]),
            lambda: worker.sync_filters({}),
        ):
            with pytest.raises((ValueError, TypeError, KeyError, AssertionError)):
                refused()
            assert held() == before


def a_removal_that_kills():
    two = {"p0": Counter, "p1": Counter}
    troupe = Troupe(lambda: BasicMultiAgent(2), 1, two, lambda agent, episode: f"p{agent}", rollout_fragment_length=20)
    troupe.sample()
    troupe.remove_policy(policy_id="p1", policy_mapping_fn=lambda *_, **__: "p0")
    batches = [troupe.sample() for _ in range(2)]
    assert batches[0]["p1"]["t"].tolist() == [20, 21, 22, 23, 24], "it acts until its episode ends"
    assert list(batches[1].policy_batches) == ["p0"]
