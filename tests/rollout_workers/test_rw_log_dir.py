"""What a worker writes: its log."""

import logging
from typing import Any

import gymnasium as gym
import pytest

from swath.rollout_workers import AlgorithmConfig, RolloutWorker
from swath.rollout_workers.policy import RandomPolicy


def worker(log_dir: Any = None, **settings: Any) -> RolloutWorker:
    return RolloutWorker(
        env_creator=lambda _: gym.make("CartPole-v1"),
        default_policy_class=RandomPolicy,
        config=AlgorithmConfig().update_from_dict(settings),
        log_dir=log_dir,
    )


@pytest.fixture(autouse=True)
def _level() -> Any:
    before = logging.getLogger("swath").level
    yield
    logging.getLogger("swath").setLevel(before)


def test_the_log_is_a_file(tmp_path: Any):
    where = tmp_path / "new" / "dir"
    with worker(str(where), log_level="INFO"):
        logging.getLogger("swath").info("said")
    logging.getLogger("swath").info("said later")
    assert {path.name for path in where.iterdir()} == {"worker_0.log"}
    said = (where / "worker_0.log").read_text()
    assert "said" in said
    assert "later" not in said


def test_without_a_directory_nothing_is_written():
    handlers = list(logging.getLogger("swath").handlers)
    with worker():
        assert logging.getLogger("swath").handlers == handlers


def test_the_logger_gets_its_level_back():
    logger = logging.getLogger("swath")
    logger.setLevel("ERROR")
    with worker(log_level="DEBUG"):
        assert logger.level == logging.DEBUG
    assert logger.level == logging.ERROR
    with pytest.raises(ValueError, match="dataset_shards"):
        worker(log_level="DEBUG", input_="dataset")
    assert logger.level == logging.ERROR


def test_a_level_that_was_set_meanwhile_stays():
    logger = logging.getLogger("swath")
    with worker(log_level="DEBUG"):
        logger.setLevel("INFO")
    assert logger.level == logging.INFO
