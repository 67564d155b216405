"""How long steps take, by a clock that is wound by hand."""

import pytest

from swath.rollout_workers.perf_stats import PerfStats

PARTS = ("raw_obs_processing", "inference", "action_processing", "env_wait", "env_render")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def stats_of(ema_coef, *seconds):
    """After timed steps whose inference took so many seconds, and the env one more each."""
    clock = Clock()
    stats = PerfStats(ema_coef, clock)
    for spent in seconds:
        assert stats.step()
        clock.now += spent
        stats.lap("inference")
        clock.now += 1
        stats.lap("env_wait")
        assert not any(stats.step() for _ in range(63))
        clock.now += 1000
    return stats


MEANS = [
    (None, (0.002,), 2.0),
    (None, (0.002, 0.004, 0.009), 5.0),
    (0.5, (0.002,), 2.0),
    (0.5, (0.002, 0.004, 0.009), 6.0),
    (1.0, (0.002, 0.004), 4.0),
    (0.0, (0.002, 0.004), 2.0),
]


@pytest.mark.parametrize(("ema_coef", "seconds", "expected"), MEANS)
def test_every_64th_step_counts_by_part_in_milliseconds(ema_coef, seconds, expected):
    told = stats_of(ema_coef, *seconds).get()
    assert list(told) == [f"mean_{part}_ms" for part in PARTS]
    assert told["mean_inference_ms"] == pytest.approx(expected)
    assert told["mean_env_wait_ms"] == pytest.approx(1000)
    assert told["mean_env_render_ms"] == 0


@pytest.mark.parametrize("ema_coef", [None, 0.5])
def test_before_the_first_step_there_is_nothing_to_tell(ema_coef):
    assert PerfStats(ema_coef).get() == {}


def test_a_real_clock_does_not_run_backwards():
    stats = PerfStats()
    stats.step()
    stats.lap("inference")
    assert stats.get()["mean_inference_ms"] >= 0
