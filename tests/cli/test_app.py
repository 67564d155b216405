"""All commands: one line for a wrong argument, tracebacks of user code, complete files.

The command line: help with the true defaults, quick because torch is not imported, errors in one line.
"""

import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
from cli_toys import TINY

from swath.cli.options import RunConfig, spell
from toys import DEADLINE_S


@pytest.mark.parametrize("name", ["frames", "envs", "workers", "batch", "seed", "device", "threads", "eval_episodes"])
def test_help_names_the_defaults_that_hold(name, swath, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = swath("train", "--help")[1]
    line = next(line for line in lines if line.lstrip("│ ").startswith(f"{spell(name)} "))
    assert f"[default: {getattr(RunConfig('X'), name)}]" in line


@pytest.mark.parametrize(
    ("words", "message", "end"),
    [
        (["trian"], 'Unknown command "trian". Did you mean "train"?', "swath"),
        (["train", "--fraems", "9"], "Unknown option: --fraems. Did you mean --frames?", "swath train"),
        *(([name], "", f"swath {name}") for name in ("collect", "eval", "doctor")),
        (["bench", "--rounds"], "", "swath bench"),
    ],
)
def test_a_misused_command_is_one_line_that_names_its_help(words, message, end, swath):
    code, _, err = swath(*words)
    assert (code, len(err)) == (2, 1)
    assert message in err[0]
    assert err[0].endswith(f"; {end} --help lists the options")


class Unserved(gym.Env):
    observation_space = gym.spaces.Text(3)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return "abc", {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train CartPole-v9", "CartPole-v9: Environment version `v9`"),
        ("train", "train: name an env, for example: swath train CartPole-v1"),
        ("train CartPole-v1 --frames 0", 'Invalid value "0" for --frames. Must be >= 1.'),
        ("train CartPole-v1 --frames 1.5", "Invalid value for --frames: 1.5 is not an integer"),
        ("train CartPole-v1 --device moon", "--device moon cannot be used here"),
        ("train CartPole-v1 --ppo.clip none", "LearnerConfig: clip=None must be above 0 and finite"),
        ("train CartPole-v1 --ppo.gama 1", "--ppo.gama: PPO has the settings "),
        ("train --resume nowhere", "no checkpoint at nowhere"),
        ("train Unserved-v0", "Unserved-v0: "),
        ("collect CartPole-v1 --out=data --backend=moon", 'Invalid value "moon" for --backend. Choose from: "inline"'),
        ("collect CartPole-v1 --out=data --backend=inline --workers=2", "--backend inline is one worker in this"),
        ("collect CartPole-v1 --out=data --greedy", "--greedy needs a policy; name it with --policy"),
        ("collect CartPole-v1 --out=data --policy=nowhere", "no checkpoint at nowhere"),
        ("collect CartPole-v1 --out=data --device=moon", "--device moon cannot be used here"),
        ("collect CartPole-v1 --out=data.csv", "data.csv: data cannot be written as .csv; end it in .parquet"),
        ("bench CartPole-v1 --envs=1,x", "Invalid value for --envs: "),
        ("bench CartPole-v1 --backends=moon", "--backends moon must be of inline, process, thread, ray, with commas"),
        ("bench CartPole-v1 --out=nowhere/x.csv", "[Errno 2] No such file or directory"),
    ],
)
def test_a_wrong_argument_is_one_line_and_writes_no_file(line, message, swath, tmp_path, monkeypatch):
    monkeypatch.setitem(gym.registry, "Unserved-v0", gym.envs.registration.EnvSpec("Unserved-v0", Unserved))
    code, out, err = swath(*line.split())
    assert (code, out, len(err)) == (2, [], 1)
    assert err[0].startswith("swath: " + message)
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize(("command", "place"), [(train, "inline"), (train, "process"), (collect, "thread")])
def test_an_env_that_raises_is_shown_with_its_seed_its_worker_and_its_lines(place, command, swath):
    code, _, err = command(swath, "Mistaken", f"--workers={1 if place == 'inline' else 2}", f"--backend={place}")
    assert code == 1
    assert err[0].startswith("swath: ValueError: the door is locked; raised by env ")
    assert "(seed " in err[0]
    assert " of worker " in err[0]
    assert err[0].endswith("`swath doctor numbered_env:Mistaken` checks the env")
    assert err[1] == "Traceback (most recent call last):"
    assert 'numbered_env.py", line ' in err[2], "no frame of the library above the user's first"
    assert any('raise ValueError("the door is locked")' in line for line in err[3:])


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
