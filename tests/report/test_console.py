"""A console whose reader has gone raises what the system says, once."""

import os
import sys
from pathlib import Path

import pytest

from swath.report.console import RunConsole


@pytest.fixture
def pipe():
    """Its reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    file = os.fdopen(writer, "w", buffering=1)
    yield file
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), file.fileno())
    file.close()


def test_a_pipe_that_nobody_reads_is_an_error_and_then_left_alone(pipe):
    console = RunConsole(file=pipe)
    with pytest.raises(BrokenPipeError, match="nobody reads the output any more"):
        console.print("one")
    console.print("two")


def test_standard_output_that_nobody_reads_holds_nothing_back_for_the_end(pipe, monkeypatch):
    monkeypatch.setattr(sys, "stdout", pipe)
    with pytest.raises(BrokenPipeError, match="nobody reads"):
        RunConsole().print("one")
    print("two", file=pipe, flush=True)
