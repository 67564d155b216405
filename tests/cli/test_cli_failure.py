"""What ends a command is one line with the way to go on, above the traceback if code raised."""

from pathlib import Path

import pytest
from cli_toys import TINY


def train(swath, name, *place):
    return swath("train", f"told_env:{name}", *TINY, *place, "--no-video", "--eval-backend=none", "--out=run")


def collect(swath, name, *place):
    return swath("collect", f"told_env:{name}", "--frames=100", "--batch=20", *place, "--out=data")


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize(("command", "place"), [(train, "inline"), (train, "process"), (collect, "thread")])
def test_an_env_that_raises_is_told_with_its_seed_its_worker_and_its_lines(place, command, swath):
    code, _, err = command(swath, "Mistaken", f"--workers={1 if place == 'inline' else 2}", f"--backend={place}")
    assert code == 1
    assert err[0].startswith("swath: ValueError: the door is locked; raised by env ")
    assert "(seed " in err[0]
    assert " of worker " in err[0]
    assert err[0].endswith("`swath doctor told_env:Mistaken` looks at the env alone")
    assert any('raise ValueError("the door is locked")' in line for line in err[1:])


@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        (train, "Unready", "ValueError: no maze"),
        (collect, "Unbuilt", "TypeError: no level"),
        (train, "Leaving", "SystemExit: enough"),
    ],
)
def test_an_env_that_raises_at_its_beginning_or_ends_the_process_is_told_likewise(command, name, said, swath):
    code, _, err = command(swath, name)
    assert (code, err[0].partition("; ")[0]) == (1, f"swath: {said}")
    assert err[1] == "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("train", "raise SystemExit('no licence')"),
        ("collect", "import os; os.environ['NO_SUCH_LICENCE']"),
        ("doctor", "x = ("),
        ("bench", "x = ("),
    ],
)
def test_a_module_that_raises_or_exits_while_it_is_imported_is_told_with_its_line(line, command, swath):
    module = f"left_{len(line)}_{command}"
    Path(f"{module}.py").write_text(f"import sys\n{line}\n")
    code, out, err = swath(command, f"{module}:Maze", *(["--out", "data"] if command == "collect" else []))
    assert (code, out) == (1, [])
    assert f"{module}:Maze: {module} cannot be imported" in err[0]
    assert any(f'{module}.py", line 2' in text for text in err[1:])
