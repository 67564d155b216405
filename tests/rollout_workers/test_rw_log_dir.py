"""What a worker writes: its log, and a film of its first sub-env."""

import logging
from typing import Any

import gymnasium as gym
import pytest

from swath.rollout_workers import AlgorithmConfig, RolloutWorker
from swath.rollout_workers.policies.random import RandomPolicy
from swath.testing.envs import MockEnv2


class Drawn(MockEnv2):
    """Counts how often it is drawn."""

    drawn = 0

    def render(self) -> Any:
        """A small picture."""
        self.drawn += 1
        if self.drawn == 99:
            raise LookupError("no picture")
        return super().render()[:64, :64]


def worker(log_dir: Any = None, **arguments: Any) -> RolloutWorker:
    """A worker that draws."""
    settings = {"render_env": True, "num_envs_per_env_runner": 2, "rollout_fragment_length": 6, "log_level": "INFO"}
    return RolloutWorker(
        env_creator=lambda _: Drawn(5), default_policy_class=RandomPolicy, config=settings, log_dir=log_dir, **arguments
    )


@pytest.fixture(autouse=True)
def _level() -> Any:
    before = logging.getLogger("swath").level
    yield
    logging.getLogger("swath").setLevel(before)


@pytest.mark.parametrize(("index", "num_workers", "drawn"), [(0, 0, True), (0, 2, False), (1, 2, True), (2, 2, False)])
def test_the_first_sub_env_of_one_worker_is_drawn_after_each_step(index: int, num_workers: int, drawn: bool):
    with worker(worker_index=index, num_workers=num_workers) as drawing:
        drawing.sample()
        assert drawing.foreach_env(lambda env: env.drawn) == [6 * drawn, 0]
        told = drawing.get_metrics()
    assert (told[0].perf_stats["mean_env_render_ms"] > 0) == drawn


def test_pictures_become_a_film_and_the_log_a_file(tmp_path: Any):
    pytest.importorskip("imageio_ffmpeg")
    where = tmp_path / "new" / "dir"
    with worker(str(where)) as drawing:
        drawing.sample()
        logging.getLogger("swath").info("said")
    logging.getLogger("swath").info("said later")
    assert {path.name for path in where.iterdir()} == {"worker_0.log", "worker_0.mp4"}
    said = (where / "worker_0.log").read_text()
    assert "said" in said
    assert "later" not in said


def test_a_film_of_an_env_that_does_not_say_its_pace_has_a_usual_one(tmp_path: Any, monkeypatch: Any):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setitem(Drawn.metadata, "render_fps", None)
    with worker(str(tmp_path)) as drawing:
        drawing.sample()
    assert (tmp_path / "worker_0.mp4").stat().st_size


def test_a_picture_that_cannot_be_drawn_is_a_failure_of_the_sub_env():
    with worker() as drawing:
        drawing.env.drawn = 97
        with pytest.raises(LookupError, match="no picture"):
            drawing.sample()
        assert len(drawing.sample()) == 12


def test_without_a_directory_nothing_is_written():
    handlers = list(logging.getLogger("swath").handlers)
    with RolloutWorker(
        env_creator=lambda _: gym.make("CartPole-v1"), default_policy_class=RandomPolicy, config=AlgorithmConfig()
    ):
        assert logging.getLogger("swath").handlers == handlers
