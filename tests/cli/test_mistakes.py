"""What an env's code raises is told by the lines that its author has to look at, by all commands alike."""

import linecache
import runpy
import sys
from pathlib import Path

import mistaken_env
import pytest
from cli_toys import TINY
from mistaken_env import Short

from swath.cli.mistake import is_mistake, told
from swath.cli.state import restore
from swath.evaluate.local import LocalEvaluation

HERE = Path(mistaken_env.__file__)
PLACES = ["inline", "process", "thread"]
LOCKED = [
    "swath: ValueError: the door is locked",
    "step",
    "self.open()",
    "open",
    'raise ValueError("the door is locked")',
]


def train(swath, name, *options):
    quiet = ("--eval-backend", "none", "--no-video", "--out", "run")
    return swath("train", f"mistaken_env:{name}", *TINY, *quiet, *options)


def collect(swath, name, *options):
    return swath("collect", f"mistaken_env:{name}", "--frames", "160", "--envs", "4", "--out", "data", *options)


def told_lines(err):
    """What is said, with functions in the place of their files and lines, which are required to fit each other."""
    lines = []
    for line, following in zip(err, [*err[1:], ""], strict=True):
        place, _, function = line.partition(", in ")
        file, _, number = place.strip().rpartition(":")
        if file == str(HERE):
            assert linecache.getline(file, int(number)).strip() == following.strip()
            line = function  # noqa: PLW2901  short
        lines.append(line.strip())
    return lines


def workers_of(place):
    return ("--backend", place, "--workers", "1" if place == "inline" else "2")


def unready(env, *, seed=None, options=None):
    raise ValueError("no maze")


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("command", "way_on"),
    [
        (train, "swath train --resume run goes on from what was saved"),
        (collect, "no frame is in data yet: the same command begins anew"),
    ],
)
def test_a_mistake_is_told_by_its_own_lines_and_what_to_do(command, way_on, place, swath):
    code, _, err = command(swath, "Mistaken", *workers_of(place))
    *lines, where, doctor, last = told_lines(err)
    assert code == 1
    assert lines == LOCKED
    assert where.startswith("raised by env ")
    assert " (seed " in where
    assert " of worker " in where
    assert doctor == "`swath doctor mistaken_env:Mistaken` looks at the env alone"
    assert last == way_on


def test_an_env_that_raises_as_a_run_is_resumed_is_named_by_its_checkpoint(swath, scripted):
    swath("train", "Scripted-v0", *TINY, "--no-video", "--out=run")
    scripted.reset = unready
    code, _, err = swath("train", "--resume", "run", "--frames", "512")
    assert (code, err[0]) == (1, "swath: ValueError: no maze")
    assert err[-2:] == ["raised by the first reset of env 0", "`swath doctor Scripted-v0` looks at the env alone"]


def test_a_checkpoint_is_not_blamed_for_an_env_that_raises_while_its_run_is_restored(swath, scripted, monkeypatch):
    def restoring(*parts):
        scripted.reset = unready
        restore(*parts)

    swath("train", "Scripted-v0", *TINY, "--no-video", "--out=run")
    monkeypatch.setattr("swath.cli.plan.restore", restoring)
    code, _, err = swath("train", "--resume", "run", "--frames", "512")
    assert (code, err[0]) == (1, "swath: ValueError: no maze")
    assert any(line.startswith(f"  {__file__}:") and line.endswith(", in unready") for line in err)
    assert err[-1] == "`swath doctor Scripted-v0` looks at the env alone"
    assert not any("checkpoint" in line for line in err)


@pytest.mark.parametrize("two", [False, True])
def test_an_evaluation_is_ended_by_a_mistake_as_other_commands_are(two, swath, scripted):
    swath("train", "Scripted-v0", *TINY, "--no-video", "--out=run")

    def locked(steps):
        raise ValueError("the door is locked")

    scripted.on_step = staticmethod(locked)
    code, _, err = swath("eval", "run", *(["run"] if two else []))
    assert (code, err[0]) == (1, "swath: ValueError: the door is locked")
    assert any(line.startswith(f"  {__file__}:") and line.endswith(", in locked") for line in err)
    assert any(line.startswith("raised by the env of slot 0 in episode 0, after 0 steps; seed of") for line in err)
    assert err[-1] == "`swath doctor Scripted-v0` looks at the env alone"
    assert not any("Traceback" in line or "swath/evaluate" in line for line in err)


@pytest.mark.parametrize("command", ["train", "collect", "bench"])
@pytest.mark.parametrize(("line", "words"), [("sys.exit()", "SystemExit"), ("{}['key']", "KeyError: 'key'")])
def test_a_module_that_raises_or_exits_while_it_is_imported_is_told_with_its_line(line, words, command, swath):
    module = f"{words[:3]}_{command}"
    Path(f"{module}.py").write_text(f"import sys\n{line}\n")
    code, out, err = swath(command, f"{module}:Maze", *(["--out", "data"] if command == "collect" else []))
    assert (code, out, err[0]) == (1, [], f"swath: {words}")
    assert f"{module}.py:2, in <module>" in err[1]
    assert err[-1] == "without its module there is no env; mend that first"


@pytest.mark.parametrize("command", [train, collect])
def test_an_env_that_ends_the_process_is_told_as_one_that_raises(command, swath):
    code, _, err = command(swath, "Leaving")
    assert code == 1
    assert told_lines(err)[:5] == ["swath: SystemExit: enough", "step", "self.open()", "open", 'sys.exit("enough")']


@pytest.mark.parametrize("place", ["inline", "thread"])
def test_wrappers_of_libraries_above_the_mistake_are_left_out(place, swath):
    assert told_lines(collect(swath, "Wrapped", *workers_of(place))[2])[:5] == LOCKED


@pytest.mark.parametrize("place", ["inline", "thread"])
def test_what_the_mistake_called_of_a_library_is_shown(place, swath):
    err = collect(swath, "Calling", *workers_of(place))[2]
    assert err[0] == "swath: numpy.linalg.LinAlgError: Singular matrix"
    assert told_lines(err)[1:5] == ["step", "self.open()", "open", "np.linalg.inv(np.zeros((2, 2)))"]
    assert "numpy" in err[5]


@pytest.mark.parametrize("place", ["inline", "thread"])
def test_the_cause_of_a_mistake_is_shown_with_its_lines(place, swath):
    lines = told_lines(collect(swath, "Chained", *workers_of(place))[2])
    assert lines[0] == "swath: RuntimeError: no key"
    assert lines[3:8] == [
        "open",
        'raise RuntimeError("no key") from missing',
        "from KeyError: 'key'",
        "open",
        '{}["key"]',
    ]


@pytest.mark.parametrize("place", ["inline", "thread"])
def test_an_exception_that_cannot_be_built_again_is_told_like_others(place, swath):
    lines = told_lines(collect(swath, "Odd", *workers_of(place))[2])
    assert lines[0].startswith("swath: mistaken_env.Locked: door 3 needs a key")
    assert lines[1:5] == ["step", "self.open()", "open", 'raise Locked(3, key="a key")']


@pytest.mark.parametrize(
    ("name", "said", "function"),
    [("Unready", "ValueError: no maze", "reset"), ("Unbuilt", "TypeError: no level", "__init__")],
)
@pytest.mark.parametrize("command", [train, collect])
def test_an_env_that_raises_before_anything_has_begun_is_told_by_its_lines_too(command, name, said, function, swath):
    code, _, err = command(swath, name)
    assert (code, told_lines(err)[:2]) == (1, [f"swath: {said}", function])
    assert f"`swath doctor mistaken_env:{name}` looks at the env alone" in err
    assert not Path("run").exists()


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", [train, collect])
def test_an_env_that_answers_with_the_wrong_form_is_told_in_one_line_that_says_what_it_should(command, place, swath):
    code, _, err = command(swath, "Short", *workers_of(place))
    said, where, doctor, _ = err
    line = Short.step.__code__.co_firstlineno
    assert code == 1
    assert said.startswith(f"swath: step of mistaken_env.Short ({HERE}:{line}) returned a tuple of 4: (")
    assert said.endswith("; a gymnasium env has step(action) -> observation, reward, terminated, truncated, info")
    assert where.startswith("raised by env ")
    assert doctor == "`swath doctor mistaken_env:Short` looks at the env alone"


@pytest.mark.parametrize("command", [train, collect])
def test_a_first_reset_of_the_wrong_form_is_told_likewise(command, swath):
    code, _, err = command(swath, "Bare")
    assert code == 1
    assert err[0].startswith("swath: reset of mistaken_env.Bare (")
    assert err[1:3] == ["raised by the first reset of env 0", "`swath doctor mistaken_env:Bare` looks at the env alone"]


@pytest.mark.parametrize(
    ("attribute", "arguments"),
    [
        ("swath.cli.training.Training._updated", ["train", "CartPole-v1", *TINY, "--no-video"]),
        ("swath.cli.gathering.rows_of", ["collect", "CartPole-v1", "--frames=90", "--out=data"]),
    ],
)
def test_a_bug_of_ours_shows_its_traceback(attribute, arguments, swath, monkeypatch):
    monkeypatch.setattr(attribute, None)
    with pytest.raises(TypeError, match="not callable") as caught:
        swath(*arguments)
    assert not hasattr(caught.value, "__notes__")


def test_a_bug_of_ours_shows_its_traceback_in_an_evaluation(swath, monkeypatch):
    swath("train", "CartPole-v1", *TINY, "--no-video", "--out=run")
    monkeypatch.setattr(LocalEvaluation, "run", None)
    with pytest.raises(TypeError, match="not callable"):
        swath("eval", "run")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that is installed, with a function that raises."""
    package = tmp_path / "site-packages" / "mazes_here"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def build():\n    raise ValueError('no level')\n")
    monkeypatch.syspath_prepend(package.parent)
    import mazes_here

    yield mazes_here
    del sys.modules["mazes_here"]


def test_installed_code_is_the_users_if_the_env_is_named_by_it(installed):
    def ours():
        installed.build()

    ours.__code__ = ours.__code__.replace(co_filename=told.__code__.co_filename)
    with pytest.raises(ValueError, match="no level") as caught:
        ours()
    error = caught.value.with_traceback(caught.tb.tb_next)
    assert not is_mistake(error, "CartPole-v1")
    assert is_mistake(error, "mazes_here:build")
    assert "mazes_here/__init__.py:2, in build" in told(error, "mazes_here:build")


def test_a_file_of_the_current_folder_is_named_as_it_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("maze.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        runpy.run_path(str(tmp_path / "maze.py"))
    assert told(caught.value, "maze:Maze").splitlines()[-2:] == ["  maze.py:1, in <module>", "    1 / 0"]


def test_a_bug_of_ours_is_none_of_the_users_even_where_it_handles_what_they_raised():
    bug = TypeError("not callable")
    try:
        raise KeyError("a mistake")
    except KeyError as mistake:
        bug.__cause__ = mistake
    assert is_mistake(bug.__cause__)
    assert not is_mistake(bug)


def test_an_error_that_was_never_raised_is_nobodys():
    assert not is_mistake(ValueError("door"))
