"""What is told of episodes, one and many."""

import math

import numpy as np
import pytest

from mock_envs import MockEnv
from swath.rollout_workers import (
    AlgorithmConfig,
    RandomPolicy,
    RolloutMetrics,
    WorkerSet,
    collect_episodes,
    collect_metrics,
    get_learner_stats,
    summarize_episodes,
)
from swath.rollout_workers.metrics import MetricsLog

PARTS = ("raw_obs_processing", "inference", "action_processing", "env_wait", "env_render")


def episode(length=10, reward=1.0, **fields):
    return RolloutMetrics(length, reward, **fields)


FAULTY = episode(
    99, -99.0, episode_faulty=True, error="boom", agent_rewards={("a", "p"): -9}, custom_metrics={"m": -9},
    perf_stats={"env_wait_ms": 99}, hist_data={"h": [9]}, media={"v": 9},
)  # fmt: skip


def test_returns_are_told_by_both_names_and_raw():
    out = summarize_episodes([episode(10, 1.0, episode_reward_raw=100.0), episode(20, 4.0, episode_reward_raw=300.0)])
    for name, expected in [("reward", (1, 2.5, 4)), ("return", (1, 2.5, 4)), ("return_raw", (100, 200, 300))]:
        assert tuple(out[f"episode_{name}_{kind}"] for kind in ("min", "mean", "max")) == expected
    assert (out["episode_len_mean"], out["episodes_timesteps_total"]) == (15, 30)
    assert (out["num_episodes"], out["episodes_this_iter"], out["num_faulty_episodes"]) == (2, 2, 0)
    assert out["hist_stats"] == {"episode_reward": [1, 4], "episode_lengths": [10, 20]}


def test_faulty_episodes_are_counted_and_nothing_else():
    whole = [episode(10, 1.0, agent_rewards={("a", "p"): 1.0}), episode(20, 2.0)]
    expected = {**summarize_episodes(whole), "num_faulty_episodes": 2}
    assert summarize_episodes([FAULTY, *whole, FAULTY]) == expected


def test_statistics_are_of_the_recent_episodes_and_counts_of_the_new():
    old, new = [episode(10, 1.0)] * 3, [episode(20, 5.0), FAULTY]
    out = summarize_episodes([*old, *new], new)
    assert (out["num_episodes"], out["episode_return_mean"], out["num_faulty_episodes"]) == (1, 2.0, 1)


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


def test_metrics_that_nobody_asks_for_are_dropped_and_counted_and_warned_of_once():
    log = MetricsLog(capacity=3)
    log.add(episode(i) for i in range(3))
    with pytest.warns(UserWarning, match="the metrics of 3 episodes were not asked for") as warned:
        log.add([episode(3), episode(4)])
    log.add([episode(5)])
    assert (len(warned), log.dropped) == (1, 3)
    assert [one.episode_length for one in log.drain()] == [3, 4, 5]
    assert log.drain() == []


def test_metrics_are_a_named_tuple_whose_fields_all_have_defaults():
    numbers = {"episode_length": 0, "episode_reward": 0, "episode_faulty": False}
    own = {"episode_reward_raw": 0, "env_index": 0, "error": ""}
    dicts = {name: {} for name in ("agent_rewards", "custom_metrics", "perf_stats", "hist_data", "media")}
    assert isinstance(RolloutMetrics(), tuple)
    assert RolloutMetrics()._asdict() == {**numbers, **dicts, **own}
    assert list(RolloutMetrics._fields)[-3:] == list(own)


@pytest.mark.parametrize("episodes", [[], [FAULTY]], ids=["none", "a faulty one"])
def test_without_an_episode_statistics_are_nan_and_counts_are_0(episodes):
    out = summarize_episodes(episodes)
    nan = {name for name, value in out.items() if isinstance(value, float) and math.isnan(value)}
    spreads = {f"episode_{name}_{k}" for name in ("reward", "return", "return_raw") for k in ("min", "mean", "max")}
    assert nan == spreads | {"episode_len_mean"}
    assert (out["num_episodes"], out["episodes_this_iter"], out["episodes_timesteps_total"]) == (0, 0, 0)


def test_rewards_are_told_by_policy_noted_numbers_joined_media_kept_and_timings_averaged():
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
    own = AlgorithmConfig().env_runners(rollout_fragment_length=10)
    options = {"env_creator": lambda _: MockEnv(5), "default_policy_class": RandomPolicy, "config": own}
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
