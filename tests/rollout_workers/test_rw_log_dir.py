"""What a worker writes: its log."""

import logging
from typing import Any

import pytest
from checklist_toys import mock

LOGGER = logging.getLogger("swath")


@pytest.fixture(autouse=True)
def _level() -> Any:
    before = LOGGER.level
    yield
    LOGGER.setLevel(before)


def test_the_log_is_a_file_and_without_a_directory_nothing_is_written(tmp_path: Any):
    where, handlers = tmp_path / "new" / "dir", list(LOGGER.handlers)
    with mock(log_dir=str(where), config={"log_level": "INFO"}):
        LOGGER.info("said")
    LOGGER.info("said later")
    assert [path.name for path in where.iterdir()] == ["worker_0.log"]
    text = (where / "worker_0.log").read_text()
    assert ("said" in text, "later" in text) == (True, False)
    with mock():
        assert LOGGER.handlers == handlers


def test_the_logger_gets_its_level_back_unless_another_was_set_meanwhile():
    LOGGER.setLevel("ERROR")
    with mock(config={"log_level": "DEBUG"}):
        assert LOGGER.level == logging.DEBUG
    assert LOGGER.level == logging.ERROR
    with mock(config={"log_level": "DEBUG"}):
        LOGGER.setLevel("INFO")
    assert LOGGER.level == logging.INFO
