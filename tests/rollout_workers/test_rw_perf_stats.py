"""How long steps take, by a clock that is wound by hand."""

import pytest

from swath.rollout_workers.metrics import PerfStats

PARTS = ("raw_obs_processing", "inference", "action_processing", "env_wait", "env_render")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(("seconds", "expected"), [((0.002,), 2.0), ((0.002, 0.004, 0.009), 5.0)])
def test_every_64th_step_counts_by_part_in_milliseconds(seconds, expected):
    clock = Clock()
    stats = PerfStats(clock)
    assert stats.get() == {}
    for spent in seconds:
        stats.step()
        clock.now += spent
        stats.lap("inference")
        clock.now += 1
        stats.lap("env_wait")
        for _ in range(63):
            stats.step()
            clock.now += 1000
            stats.lap("env_wait")
    told = stats.get()
    assert list(told) == [f"mean_{part}_ms" for part in PARTS]
    assert told["mean_inference_ms"] == pytest.approx(expected)
    assert told["mean_env_wait_ms"] == pytest.approx(1000)
    assert told["mean_env_render_ms"] == 0
