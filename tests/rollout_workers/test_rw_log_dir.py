"""What a worker writes: its log."""

import logging

from rw_toys import mock

LOGGER = logging.getLogger("swath")


def test_the_log_is_a_file_the_level_comes_back_and_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(LOGGER, "level", logging.ERROR)
    where, handlers = tmp_path / "new" / "dir", list(LOGGER.handlers)
    with mock(log_dir=str(where), config={"log_level": "INFO"}):
        LOGGER.info("said")
    LOGGER.error("said later")
    assert LOGGER.level == logging.ERROR
    assert [path.name for path in where.iterdir()] == ["worker_0.log"]
    text = (where / "worker_0.log").read_text()
    assert ("said" in text, "later" in text) == (True, False)
    with mock():
        assert LOGGER.handlers == handlers
