"""What `sample()` hands out: which rows, in which order, under which names; and how often it asks the policy."""

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import LONG, Foreseen, counting_worker, made_of

from mock_envs import MockEnv, MockEnv2, MockEnv3, RandomEnv, VectorizedMockEnv
from swath.rollout_workers import PPOTorchPolicy, SampleBatch
from swath.rollout_workers.batches.names import optional_views
from swath.rollout_workers.policy import RandomPolicy
from swath.testing.counting import Counting, CountingEnv, Script, reward_of

B, F = 3, 4
SHORT = Counting(script=Script((3, 5, 1, 4)))
DTYPES = {"rewards": np.float32, "terminateds": np.bool_, "truncateds": np.bool_}
DTYPES |= dict.fromkeys(("actions", "t", "eps_id", "unroll_id", "agent_index", "policy_version"), np.int64)


def test_a_batch_has_all_rows_of_sub_env_0_then_of_1_each_says_which_it_is_and_no_other_shares_its_memory():
    with counting_worker(SHORT) as worker:
        batches = [worker.sample() for _ in range(3)]
    for batch in batches:
        batch.check_lengths()
        assert isinstance(batch, SampleBatch)
        assert {name: batch[name].dtype for name in DTYPES} == DTYPES
        assert batch["obs"][:, 0].tolist() == [env for env in range(B) for _ in range(F)]
        assert batch["t"].tolist() == batch["obs"][:, 2].tolist()
        assert batch["actions"].tolist() == (batch["obs"][:, 2] % 3).tolist()
        assert batch["twice"].tolist() == (2 * batch["obs"][:, 2]).tolist()
        np.testing.assert_array_equal(batch["new_obs"][:, 2], batch["obs"][:, 2] + 1)
        np.testing.assert_array_equal(batch["new_obs"][:, :2], batch["obs"][:, :2])
        rewards = [reward_of(mark, [action]) for mark, action in zip(batch["new_obs"], batch["actions"], strict=True)]
        assert batch["rewards"].tolist() == rewards
        assert batch["dones"].tolist() == (batch["terminateds"] | batch["truncateds"]).tolist()
    ids = [set(batch["unroll_id"].tolist()) for batch in batches]
    assert len(set.union(*ids)) == sum(map(len, ids)), "no chunk's number is given twice"
    assert worker.get_policy().asked == [B] * (3 * F), "once a step for all sub-envs"
    first, second, _ = batches
    for name in first:
        assert not np.shares_memory(first[name], second[name])
        first[name][:] = 0


@pytest.mark.parametrize(("length", "rows"), [(5, 10), (10, 10), (15, 20)])
def test_whole_episodes_of_ten_steps_are_as_many_as_are_needed(length, rows):
    settings = {"rollout_fragment_length": length, "batch_mode": "complete_episodes"}
    with made_of(lambda: MockEnv(10), RandomPolicy, **settings) as worker:
        for _ in range(3):
            batch = worker.sample()
            assert batch["t"].tolist() == [*range(10)] * (rows // 10)
            assert batch["truncateds"].sum() == rows // 10


def test_whole_episodes_stop_at_the_first_step_that_has_enough_and_running_ones_go_on():
    with counting_worker(SHORT, batch_mode="complete_episodes") as worker:
        batches = [worker.sample() for _ in range(6)]
    marks = [tuple(row) for batch in batches for row in batch["obs"].tolist()]
    assert len(set(marks)) == len(marks)
    for env in range(B):
        env_marks = [mark[1:] for mark in marks if mark[0] == env]
        assert env_marks == sorted(env_marks)
        assert env_marks[0] == (0, 0)
    for batch in batches:
        lengths = [part.count for part in batch.split_by_episode()]
        assert len(lengths) == batch["dones"].sum()
        assert B * F <= len(batch) < B * F + sum(sorted(lengths)[-B:]), "not one step more"


@pytest.mark.parametrize("handed", [1, 2, 8])
def test_a_vector_env_of_more_sub_envs_hands_out_some_and_keeps_the_others_for_the_next_calls(handed):
    settings = {"num_envs_per_env_runner": handed, "rollout_fragment_length": 10}
    with made_of(lambda: VectorizedMockEnv(25, 8), RandomPolicy, **settings) as worker:
        ids = []
        for _ in range(2 * 8 // handed):
            batch = worker.sample()
            assert len(batch) == 10 * handed
            ids += batch["eps_id"].tolist()
        assert worker.async_env.num_envs == 8
    assert ids[: len(ids) // 2] == [env for env in range(8) for _ in range(10)]
    assert ids == ids[: len(ids) // 2] * 2


class Asking(Foreseen):
    """Asks for every optional column, and keeps what it was shown."""

    def __init__(self, *args):
        super().__init__(*args)
        self.view_requirements = optional_views("prev_actions", "prev_rewards", "infos", "env_id", "agent_id")
        self.shown = []

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        self.shown.append((kwargs["prev_action_batch"], kwargs["prev_reward_batch"], kwargs["info_batch"]))
        return super().compute_actions(obs_batch, state_batches, **kwargs)


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
def test_vector_envs_of_all_modes_give_the_same_rows(mode):
    numbers = iter(range(B))
    make = lambda: gym.vector.SyncVectorEnv([lambda: CountingEnv(next(numbers), SHORT)] * B, autoreset_mode=mode)
    with made_of(make, Asking, num_envs_per_env_runner=B, rollout_fragment_length=F) as worker:
        batches = [worker.sample() for _ in range(4)]
    with counting_worker(SHORT, policy=Asking) as other:
        wanted = [other.sample() for _ in range(4)]
    assert [len(batch) for batch in batches] == [B * F] * 4
    for name in ("obs", "new_obs", "actions", "rewards", "t", "prev_actions", "prev_rewards", "terminateds"):
        for env in range(B):
            rows = [row for batch in batches for row in batch[name][batch["env_id"] == env].tolist()]
            assert rows == [row for batch in wanted for row in batch[name][batch["env_id"] == env].tolist()]


def test_rows_carry_the_version_that_acted_and_its_values_and_chunks_end_where_it_changes():
    settings = {"policy": PPOTorchPolicy, "batch_mode": "complete_episodes"}
    with counting_worker(Counting(script=Script((6, 6, 2))), **settings) as worker:
        worker.sample()
        before = worker.get_weights()["default_policy"]
        after = {name: array + 0.1 for name, array in before.items()}
        worker.set_weights({"default_policy": after}, weights_seq_no=7)
        batch, policy = worker.sample(), worker.get_policy()
    chunks = set(zip(batch["unroll_id"].tolist(), batch["policy_version"].tolist(), strict=True))
    assert len(chunks) == len(set(batch["unroll_id"].tolist()))
    for version, weights in ((0, before), (7, after)):
        rows = batch["policy_version"] == version
        assert rows.any()
        policy.set_weights(weights)
        wanted = policy.compute_values({"obs": batch["obs"][rows]})
        np.testing.assert_allclose(batch["vf_preds"][rows], wanted, rtol=1e-5, atol=1e-6)


def test_a_call_may_say_whether_to_explore_and_give_running_episodes_up():
    with counting_worker(LONG, explore=False) as worker:
        worker.sample()
        batch = worker.sample(explore=True, force_reset=True)
        assert worker.get_policy().explored == [False] * F + [True] * F
        assert batch["obs"][:, 1:].tolist() == [[1, t] for t in range(F)] * B
        assert worker.counters["env_steps_discarded"] == 0
        with pytest.raises(TypeError):
            worker.sample(explored=True)


@pytest.mark.parametrize(("clip", "reward"), [(True, 10.0), (False, 1000.0), (None, 1000.0), (5.0, 50.0)])
def test_metrics_have_clipped_and_raw_rewards(clip, reward):
    with made_of(lambda: MockEnv2(10), RandomPolicy, clip_rewards=clip, rollout_fragment_length=10) as worker:
        batch = worker.sample()
        (metrics,) = worker.get_metrics()
        assert worker.get_metrics() == []
    assert (metrics.episode_length, metrics.episode_reward, metrics.episode_reward_raw) == (10, reward, 1000.0)
    assert batch["rewards"].sum() == reward
    assert metrics.agent_rewards == {("agent0", "default_policy"): reward}


def test_optional_columns_are_there_on_request_and_shifted_by_one():
    with counting_worker(SHORT, policy=Asking) as worker:
        batches = [worker.sample() for _ in range(3)]
        shown = worker.get_policy().shown
    for env in range(B):
        names = ("actions", "prev_actions", "rewards", "prev_rewards", "dones")
        columns = {name: np.concatenate([batch[name][batch["env_id"] == env] for batch in batches]) for name in names}
        fresh = np.append(True, columns["dones"][:-1])
        for name in ("actions", "rewards"):
            np.testing.assert_array_equal(columns[f"prev_{name}"], np.where(fresh, 0, np.append(0, columns[name][:-1])))
        assert [step[0][env] for step in shown] == columns["prev_actions"].tolist()
        assert [step[1][env] for step in shown] == columns["prev_rewards"].tolist()
    assert {*batches[0]["agent_id"].tolist()} == {"agent0"}
    assert all(info == {} for info in batches[0]["infos"])


def test_each_observation_is_pushed_into_the_filter_once():
    with counting_worker(SHORT, observation_filter="ConcurrentMeanStdFilter") as worker:
        for _ in range(3):
            worker.sample()
    resets = sum(len(env.seeds) for env in worker.env_creator.made)
    assert worker.filters["default_policy"].rs.n == 3 * B * F + resets


def test_observations_are_preprocessed_unless_the_config_says_otherwise():
    with made_of(lambda: MockEnv3(5), RandomPolicy, rollout_fragment_length=5) as worker:
        assert worker.sample()["obs"].argmax(axis=1).tolist() == [*range(5)]
        assert worker.get_policy().observation_space.original_space == gym.spaces.Discrete(100)
    settings = {"policy": RandomPolicy, "_disable_preprocessor_api": True}
    with counting_worker(Counting("nested", script=Script((3,))), **settings) as worker:
        obs = worker.sample()["obs"]
    assert (obs["state"][0].dtype, obs["camera"]["left"].dtype) == (np.float64, np.uint8)


def test_batches_hold_raw_actions_and_envs_get_read_only_processed_ones():
    got, space = [], gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))

    class Wanting(RandomEnv):
        def step(self, action):
            got.append(action)
            return super().step(action)

    with made_of(lambda: Wanting({"action_space": space}), PPOTorchPolicy, rollout_fragment_length=20) as worker:
        raw = worker.sample()["actions"]
    wanted = np.clip(space.low + (raw + 1) * (space.high - space.low) / 2, space.low, space.high)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert abs(raw).max() > 1 > abs(raw).min()
    with pytest.raises(ValueError, match="read-only"):
        got[0][0] = 1


def test_a_time_limit_that_was_changed_ends_episodes_from_the_next_one_on():
    env = gym.make("Pendulum-v1")
    assert env.spec.max_episode_steps == 200
    env.set_wrapper_attr("_max_episode_steps", 4)
    with made_of(lambda: env, RandomPolicy, rollout_fragment_length=8) as worker:
        assert worker.sample()["truncateds"].nonzero()[0].tolist() == [3, 7]
        env.set_wrapper_attr("_max_episode_steps", 3)
        assert worker.sample()["truncateds"].nonzero()[0].tolist() == [2, 5]


@pytest.mark.parametrize("length", [2, 100])
def test_an_info_of_none_is_an_empty_one(length):
    class WithoutInfo(MockEnv):
        def reset(self, **options):
            return super().reset(**options)[0], None

        def step(self, action):
            return *super().step(action)[:4], None

    class Wanting(RandomPolicy):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.view_requirements = optional_views("infos")

    with made_of(lambda: WithoutInfo(length), Wanting, rollout_fragment_length=5) as worker:
        assert worker.sample()["infos"].tolist() == [{}] * 5
