"""Episodes as callbacks and policies see them while they run, and metrics of those that have ended."""

import gc
import math
import weakref
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import Foreseen, counting_worker, made_of

from mock_envs import MockEnv, MockEnv3, VectorizedMockEnv
from swath.rollout_workers import (
    AlgorithmConfig,
    Episode,
    PPOTorchPolicy,
    RandomPolicy,
    RolloutMetrics,
    WorkerSet,
    collect_episodes,
    collect_metrics,
    get_learner_stats,
    summarize_episodes,
)
from swath.rollout_workers.metrics import MetricsLog
from swath.testing.counting import Counting, Script

ONE = {"num_envs_per_env_runner": 1, "rollout_fragment_length": 5}


def test_callbacks_are_called_in_order_with_sums_of_the_moment():
    notes = []

    def note(event, *, episode, env_index, **kwargs):
        notes.append((event, env_index, episode.length, episode.total_reward))
        assert kwargs["worker"] is kwargs["env_runner"]
        assert kwargs["env"] is kwargs["base_env"].get_sub_environments()[env_index]
        assert set(kwargs["policies"]) == {"default_policy"}
        if event == "step":
            assert episode.active_env_steps == episode.length
            episode.hist_data.setdefault("seen", []).append(episode.last_info_for()["timestep"])
        elif event == "end":
            assert episode.is_truncated()
            assert episode.agent_rewards == {("agent0", "default_policy"): episode.total_reward}
            episode.custom_metrics["steps"], episode.media["film"] = episode.length, "none"

    functions = {f"on_episode_{event}": partial(note, event) for event in ("created", "start", "step", "end")}
    with made_of(lambda: MockEnv3(3), RandomPolicy, callback_functions=functions, **ONE) as worker:
        worker.sample()
        (metrics,) = worker.get_metrics()
    first = [("created", 0, -1, 0.0), ("start", 0, 0, 0.0), ("step", 0, 1, 1.0), ("step", 0, 2, 3.0)]
    assert notes == [*first, ("step", 0, 3, 6.0), ("end", 0, 3, 6.0), *first]
    assert (metrics.custom_metrics, metrics.hist_data) == ({"steps": 3}, {"seen": [1, 2, 3]})
    assert metrics.media == {"film": "none"}


def test_episodes_are_forgotten_once_their_last_row_is_handed_out():
    episodes = weakref.WeakSet()
    listening = {"on_episode_created": lambda *, episode, **_: episodes.add(episode)}
    settings = {"num_envs_per_env_runner": 1, "rollout_fragment_length": 10, "callback_functions": listening}
    with made_of(lambda: VectorizedMockEnv(4, 3), RandomPolicy, **settings) as worker:
        for _ in range(6):
            worker.sample()
            gc.collect()
            assert len(episodes) <= 3 * (10 // 4 + 2)


class Curious(Foreseen):
    """Is shown episodes."""

    looks_at_episodes = True

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        assert {type(episode) for episode in kwargs["episodes"]} == {Episode}
        assert [episode.length for episode in kwargs["episodes"]] == obs_batch[:, 2].tolist()
        self.ids = [episode.episode_id for episode in kwargs["episodes"]]
        return super().compute_actions(obs_batch, state_batches, **kwargs)


def test_a_policy_that_looks_at_episodes_is_shown_one_per_row():
    with counting_worker(Counting(script=Script((3, 5, 1, 4))), policy=Curious) as worker:
        batch = worker.sample()
    assert worker.get_policy().ids == batch["eps_id"].reshape(3, -1)[:, -1].tolist()


class Remembering(Foreseen):
    """Counts the steps of its episodes in a nested state."""

    def get_initial_state(self):
        return [{"steps": np.zeros(2, np.float32)}]

    def is_recurrent(self):
        return True

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        (state,) = state_batches
        np.testing.assert_array_equal(state["steps"][:, 0], obs_batch[:, 2])
        actions, _, extra = super().compute_actions(obs_batch, **kwargs)
        return actions, [{"steps": state["steps"] + 1}], extra


def test_states_are_kept_per_sub_env_and_rows_are_put_into_sequences():
    settings = {"rollout_fragment_length": 12, "model": {"max_seq_len": 4}}
    with counting_worker(Counting(script=Script((7, 5, 9))), policy=Remembering, **settings) as worker:
        batches = [worker.sample(), worker.sample()]
    for batch in batches:
        batch.check_lengths()
        lengths = batch["seq_lens"]
        assert (lengths.sum(), lengths.max()) == (36, 4)
        starts = np.cumsum([0, *lengths[:-1]])
        np.testing.assert_array_equal(batch["state_in_0"]["steps"][:, 0], batch["t"][starts])
        np.testing.assert_array_equal(batch["state_out_0"]["steps"][:, 0], batch["t"] + 1)
        chunks = [set(batch["unroll_id"][start : start + n].tolist()) for start, n in zip(starts, lengths, strict=True)]
        assert all(len(chunk) == 1 for chunk in chunks)


@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_metrics_from_chunks_are_present_when_their_episode_ends(mode):
    def count(*, episode, postprocessed_batch, **_):
        episode.custom_metrics["rows"] = episode.custom_metrics.get("rows", 0) + postprocessed_batch.count

    def end(*, episode, **_):
        episode.hist_data["at_end"] = [episode.custom_metrics["rows"]]

    functions = {"on_postprocess_trajectory": count, "on_episode_end": end}
    with made_of(lambda: MockEnv3(7), RandomPolicy, callback_functions=functions, batch_mode=mode, **ONE) as worker:
        for _ in range(5):
            worker.sample()
        metrics_list = worker.get_metrics()
    assert len(metrics_list) > 2
    assert [metrics.hist_data["at_end"] for metrics in metrics_list] == [[7]] * len(metrics_list)


def test_advantages_of_a_whole_batch_equal_the_advantages_of_its_chunks():
    def batches(functions):
        settings = {"seed": 5, "model": {"fcnet_hiddens": [8]}, "lambda_": 0.9, "gamma": 0.95}
        settings |= {"num_envs_per_env_runner": 3, "rollout_fragment_length": 40, "callback_functions": functions}
        with made_of(lambda: gym.make("CartPole-v1", max_episode_steps=15), PPOTorchPolicy, **settings) as worker:
            return [worker.sample() for _ in range(3)]

    listening = {"on_postprocess_trajectory": lambda **_: None}
    for at_once, by_chunk in zip(batches({}), batches(listening), strict=True):
        assert set(at_once) == set(by_chunk)
        assert at_once["truncateds"].any()
        for name in at_once:
            np.testing.assert_allclose(at_once[name], by_chunk[name], rtol=1e-5, atol=1e-5, err_msg=name)


PARTS = ("raw_obs_processing", "inference", "action_processing", "env_wait", "env_render")


def episode(length=10, reward=1.0, **fields):
    return RolloutMetrics(length, reward, **fields)


FAULTY = episode(
    99, -99.0, episode_faulty=True, error="boom", agent_rewards={("a", "p"): -9}, custom_metrics={"m": -9},
    perf_stats={"env_wait_ms": 99}, hist_data={"h": [9]}, media={"v": 9},
)  # fmt: skip


def test_returns_have_both_names_and_raw_statistics_of_the_recent_and_counts_of_the_new():
    out = summarize_episodes([episode(10, 1.0, episode_reward_raw=100.0), episode(20, 4.0, episode_reward_raw=300.0)])
    for name, expected in [("reward", (1, 2.5, 4)), ("return", (1, 2.5, 4)), ("return_raw", (100, 200, 300))]:
        assert tuple(out[f"episode_{name}_{kind}"] for kind in ("min", "mean", "max")) == expected
    assert (out["episode_len_mean"], out["episodes_timesteps_total"]) == (15, 30)
    assert (out["num_episodes"], out["episodes_this_iter"], out["num_faulty_episodes"]) == (2, 2, 0)
    assert out["hist_stats"] == {"episode_reward": [1, 4], "episode_lengths": [10, 20]}
    new = [episode(20, 5.0), FAULTY]
    out = summarize_episodes([episode(10, 1.0)] * 3 + new, new)
    assert (out["num_episodes"], out["episode_return_mean"], out["num_faulty_episodes"]) == (1, 2.0, 1)


def test_faulty_episodes_are_counted_and_nothing_else():
    complete = [episode(10, 1.0, agent_rewards={("a", "p"): 1.0}), episode(20, 2.0)]
    assert summarize_episodes([FAULTY, *complete, FAULTY]) == {**summarize_episodes(complete), "num_faulty_episodes": 2}


CUSTOM = [
    ([1.0, 3.0], {"m_mean": 2, "m_min": 1, "m_max": 3}, [1, 3]),
    ([np.nan, 3.0], {"m_mean": 3, "m_min": 3, "m_max": 3}, [3]),
    ([[1.0, 2.0], [3.0, 6.0]], {"m_mean": 3, "m_min": 1, "m_max": 6}, [[1, 2], [3, 6]]),
]


@pytest.mark.parametrize(("values", "summary", "kept"), CUSTOM, ids=str)
def test_custom_metrics_are_summed_up_or_kept_without_nan(values, summary, kept):
    episodes = [episode(custom_metrics={"m": value}) for value in values]
    assert summarize_episodes(episodes)["custom_metrics"] == summary
    assert summarize_episodes(episodes, keep_custom_metrics=True)["custom_metrics"] == {"m": kept}


def test_unread_metrics_are_dropped_counted_and_warned_of_once():
    log = MetricsLog(capacity=3)
    log.add(episode(i) for i in range(3))
    with pytest.warns(UserWarning, match="the metrics of 3 episodes wait") as warned:
        log.add([episode(3), episode(4)])
    log.add([episode(5)])
    assert (len(warned), log.dropped) == (1, 3)
    assert [metrics.episode_length for metrics in log.drain()] == [3, 4, 5]
    assert log.drain() == []


def test_metrics_are_a_named_tuple_whose_fields_all_have_defaults():
    numbers = {"episode_length": 0, "episode_reward": 0, "episode_faulty": False}
    added = {"episode_reward_raw": 0, "env_index": 0, "error": ""}
    dicts = {name: {} for name in ("agent_rewards", "custom_metrics", "perf_stats", "hist_data", "media")}
    assert isinstance(RolloutMetrics(), tuple)
    assert RolloutMetrics()._asdict() == {**numbers, **dicts, **added}
    assert list(RolloutMetrics._fields)[-3:] == list(added)


@pytest.mark.parametrize("episodes", [[], [FAULTY]], ids=["none", "a faulty one"])
def test_without_an_episode_statistics_are_nan_and_counts_are_0(episodes):
    out = summarize_episodes(episodes)
    nan = {name for name, value in out.items() if isinstance(value, float) and math.isnan(value)}
    spreads = {f"episode_{name}_{k}" for name in ("reward", "return", "return_raw") for k in ("min", "mean", "max")}
    assert nan == spreads | {"episode_len_mean"}
    assert (out["num_episodes"], out["episodes_this_iter"], out["episodes_timesteps_total"]) == (0, 0, 0)


def test_rewards_are_by_policy_noted_numbers_joined_media_kept_and_timings_averaged():
    rewards = {("a", "p"): 1.0, ("b", "p"): 3.0, ("c", "q"): 5.0}
    episodes = [
        episode(agent_rewards=rewards, hist_data={"h": [1]}, media={"v": "x"}, perf_stats={"t": 1.0}),
        episode(agent_rewards={("a", "p"): 8.0}, hist_data={"h": [2, 3]}, media={"v": "y"}, perf_stats={"t": 3.0}),
    ]
    out = summarize_episodes(episodes)
    spreads = [out[f"policy_reward_{kind}"] for kind in ("min", "mean", "max")]
    assert spreads == [{"p": 1, "q": 5}, {"p": 4, "q": 5}, {"p": 8, "q": 5}]
    assert (out["hist_stats"]["policy_p_reward"], out["hist_stats"]["h"]) == ([1, 3, 8], [1, 2, 3])
    assert (out["episode_media"], out["sampler_perf"]) == ({"v": ["x", "y"]}, {"t": 2.0})


@pytest.mark.parametrize(("ids", "n"), [(None, 6), ([2], 4), ([], 2)], ids=str)
def test_episodes_are_collected_from_the_local_and_the_chosen_workers(ids, n):
    config = AlgorithmConfig().env_runners(rollout_fragment_length=10)
    options = {"env_creator": lambda _: MockEnv(5), "default_policy_class": RandomPolicy, "config": config}
    with WorkerSet(**options, num_workers=2, backend="inline") as workers:
        workers.foreach_worker("sample")
        (first, *_) = episodes = collect_episodes(workers, ids)
        assert (len(episodes), first.episode_reward) == (n, 5.0)
        assert list(first.perf_stats) == [f"mean_{part}_ms" for part in PARTS]
        assert collect_metrics(workers, remote_worker_ids=[])["num_episodes"] == 0, "they are drained"
        assert collect_metrics(workers)["num_episodes"] == 6 - n


def test_learner_stats_are_found_for_one_policy_and_for_several():
    several = {"p": {"learner_stats": {"a": 1}}, "q": {"learner_stats": {}}, "batch_count": 3}
    assert get_learner_stats({"learner_stats": {"a": 1}, "model": {}}) == {"a": 1}
    assert get_learner_stats(several) == {"p": {"a": 1}, "q": {}}
