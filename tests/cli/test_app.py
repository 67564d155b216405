"""All commands: one line for a wrong argument, tracebacks of user code, complete files.

The command line: help with the true defaults, quick because torch is not imported, errors in one line.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from cli_toys import TINY

from swath.cli.options import RunConfig, flag
from toys import DEADLINE_S


@pytest.mark.parametrize("name", ["frames", "envs", "workers", "batch", "seed", "device", "threads", "eval_episodes"])
def test_help_names_the_defaults_that_hold(name, swath, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = swath("train", "--help")[1]
    line = next(line for line in lines if line.lstrip("│ ").startswith(f"{flag(name)} "))
    assert f"[default: {getattr(RunConfig('X'), name)}]" in line


def test_an_unknown_command_is_one_line(swath):
    code, _, err = swath("trian")
    assert (code, len(err)) == (2, 1)
    assert 'Unknown command "trian". Did you mean "train"?' in err[0]
    assert err[0].endswith("; swath --help lists the options")


@pytest.mark.parametrize(
    "words", [["train", "--fraems", "9"], ["collect"], ["eval"], ["bench", "--rounds"], ["doctor"]]
)
def test_a_misused_command_names_its_help(words, swath):
    code, _, err = swath(*words)
    assert (code, len(err)) == (2, 1)
    assert err[0].endswith(f"; swath {words[0]} --help lists the options")


WITHOUT_TORCH = [
    ([], 0),
    (["train", "--help"], 0),
    (["trian"], 2),
    (["train", "CartPole-v1", "--fraems", "9"], 2),
    (["train", "CartPole-v1", "--frames", "0"], 2),
    (["train", "nowhere_at_all:Env"], 2),
    (["train", "--resume", "nowhere"], 2),
    (["eval", "nowhere"], 2),
    *(([command, "CartPol-v1"], 2) for command in ("train", "collect", "doctor", "bench")),
]
RUN_ALL = "import sys; from swath.cli.app import run; print([run(line) for line in {}], 'torch' in sys.modules)"


def test_help_and_usage_errors_are_quick_because_they_import_no_torch():
    code = RUN_ALL.format([line for line, _ in WITHOUT_TORCH])
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stdout.splitlines()[-1] == f"{[code for _, code in WITHOUT_TORCH]} False"


def train(swath, name, *place):
    return swath("train", f"numbered_env:{name}", *TINY, *place, "--no-video", "--eval-backend=none", "--out=run")


def collect(swath, name, *place):
    return swath("collect", f"numbered_env:{name}", "--frames=100", "--batch=20", *place, "--out=data")


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize(("command", "place"), [(train, "inline"), (train, "process"), (collect, "thread")])
def test_an_env_that_raises_is_shown_with_its_seed_its_worker_and_its_lines(place, command, swath):
    code, _, err = command(swath, "Mistaken", f"--workers={1 if place == 'inline' else 2}", f"--backend={place}")
    assert code == 1
    assert err[0].startswith("swath: ValueError: the door is locked; raised by env ")
    assert "(seed " in err[0]
    assert " of worker " in err[0]
    assert err[0].endswith("`swath doctor numbered_env:Mistaken` checks the env")
    assert any('raise ValueError("the door is locked")' in line for line in err[1:])


@pytest.mark.parametrize(
    ("command", "name", "message"),
    [
        (train, "Unready", "ValueError: no maze"),
        (collect, "Unbuilt", "TypeError: no level"),
        (train, "Leaving", "SystemExit: enough"),
    ],
)
def test_an_env_that_raises_at_once_or_exits_is_shown_with_its_traceback(command, name, message, swath):
    code, _, err = command(swath, name)
    assert (code, err[0].partition("; ")[0]) == (1, f"swath: {message}")
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
def test_a_module_that_raises_or_exits_while_it_is_imported_is_shown_with_its_line(line, command, swath):
    module = f"left_{len(line)}_{command}"
    Path(f"{module}.py").write_text(f"import sys\n{line}\n")
    code, out, err = swath(command, f"{module}:Maze", *(["--out", "data"] if command == "collect" else []))
    assert (code, out) == (1, [])
    assert f"{module}:Maze: {module} cannot be imported" in err[0]
    assert any(f'{module}.py", line 2' in text for text in err[1:])
