import importlib
from pathlib import Path

import named_things
import pytest
from cli_toys import TINY

from swath.cli.naming import env_named

COMMANDS = {
    "train": TINY,
    "collect": ("--out", "data", "--frames", "16"),
    "doctor": (),
    "bench": ("--rounds", "1", "--seconds", "0", "--batch", "16", "--backends", "inline", "--envs", "2"),
}


def test_a_name_with_a_colon_is_what_the_module_has_or_an_id_that_it_registers():
    assert env_named("named_things:plain", {}) is named_things.plain
    for name in ("named_things:NamedPlain-v0", "CartPole-v1", "CartPole"):
        assert env_named(name, {}) == name


@pytest.mark.usefixtures("lonely")
@pytest.mark.parametrize(
    ("command", "name"), [*((command, "Lonely") for command in COMMANDS), ("doctor", "made"), ("collect", "Lonely-v3")]
)
def test_every_command_finds_modules_of_the_current_folder(command, name, swath):
    code, out, err = swath(command, f"lonely_here:{name}", *COMMANDS[command])
    assert (code, err) == (0, [])
    assert out


@pytest.mark.usefixtures("lonely", "warm_processes")
def test_workers_in_processes_find_what_is_in_the_current_folder(swath):
    places = ("--workers", "2", "--eval-backend", "process", "--no-video")
    code, out, err = swath("train", "lonely_here:Lonely-v3", *TINY, *places)
    assert (code, err) == (0, [])
    assert any(": evaluation " in line for line in out)


@pytest.mark.parametrize(("name", "film"), [("Drawn", True), ("plain", False)])
def test_a_class_makes_the_env_of_the_film_if_it_can(name, film, swath):
    _, out, _ = swath("train", f"named_things:{name}", *TINY, "--eval-backend", "none")
    assert Path(f"runs/named_things-{name}-seed0/video.mp4").exists() == film
    assert any(line.startswith("no film: named_things:plain has no render mode") for line in out) != film


UNKNOWN = {
    "CartPol-v1": "CartPol-v1: Environment `CartPol` doesn't exist. Did you mean: `CartPole`?",
    "nowhere:X": "nowhere:X: No module named 'nowhere'; modules must be installed, or in this folder",
    "named_things:plian": "named_things:plian: named_things has no 'plian'; did you mean 'plain'?",
    "named_things:LENGTH": "named_things:LENGTH makes no env; name a class or function that makes one, or an id",
    "broken_things:X": "broken_things:X: No module named 'nothing_such'",
}


@pytest.mark.parametrize(
    ("command", "name"), [*(("doctor", name) for name in UNKNOWN), *((command, "nowhere:X") for command in COMMANDS)]
)
def test_an_env_that_there_is_not_is_one_line(command, name, swath):
    Path("broken_things.py").write_text("import nothing_such")
    importlib.invalidate_caches()
    code, out, err = swath(command, name, *COMMANDS[command])
    assert (code, out, len(err)) == (2, [], 1)
    assert err[0].startswith(f"swath: {UNKNOWN[name]}")
