import importlib
from pathlib import Path

import named_things
import pytest
from cli_toys import SMALL, TINY

from swath.cli.naming import env_named
from swath.report.csv_sink import read_rows
from swath.report.datasets import open_dataset

COMMANDS = {
    "train": TINY,
    "collect": ("--out", "data", "--frames", "16"),
    "doctor": ("--steps", "9", "--seconds", "0"),
    "bench": ("--rounds", "1", "--seconds", "0", "--batch", "16", "--backends", "inline", "--envs", "2"),
}
HAS = "; named_things has Plain, Doubtful, Waiting, Drawn, NamedTwice"
CART_POL = "Environment `CartPol` doesn't exist. Did you mean: `CartPole`?"
NAMED_PLAIN = (
    "Environment version `v1` for environment `NamedPlain` doesn't exist. It provides versioned environments: [ `v0` ]"
)

pytestmark = pytest.mark.usefixtures("healthy_machine")


def test_a_name_with_a_colon_is_what_the_module_has_or_an_id_that_it_registers():
    assert env_named("named_things:plain") is named_things.plain
    assert env_named("named_things:existing") is named_things.existing
    for name in ("named_things:NamedPlain-v0", "named_things:NamedPlain", "CartPole-v1", "CartPole"):
        assert env_named(name) == name


def test_an_id_of_this_name_comes_first_for_that_is_what_gymnasium_makes():
    assert env_named("named_things:NamedTwice") == "named_things:NamedTwice"


@pytest.mark.usefixtures("lonely")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["Lonely", "made", "Lonely-v3"])
def test_every_command_finds_modules_of_the_current_folder(command, name, swath):
    code, out, err = swath(command, f"lonely_here:{name}", *COMMANDS[command])
    assert (code, err) == (0, [])
    assert out[0].startswith(f"lonely_here:{name}")


@pytest.mark.usefixtures("lonely")
def test_a_run_keeps_the_name_of_its_env(swath):
    run = Path("runs/lonely_here-Lonely-seed0")
    swath("train", "lonely_here:Lonely", *TINY)
    assert swath("eval", run)[1][-1] == "every episode as stored"
    assert swath("train", "--resume", run, "--frames", "384", "--no-video")[0] == 0
    assert [row["frames"] for row in read_rows(run / "metrics.csv")[1]] == ["0", "128", "256", "384"]
    code, out, _ = swath("collect", "lonely_here:Lonely", "--frames", "16", "--policy", run, "--out", "data")
    assert (code, out[-2]) == (0, "data: 16 frames, 0 ended episodes, 1 part")


@pytest.mark.usefixtures("lonely", "warm_processes")
def test_workers_in_processes_find_what_is_in_the_current_folder(swath):
    places = ("--workers", "2", "--eval-backend", "process", "--no-video")
    for name in ("Lonely", "Lonely-v3"):
        code, out, err = swath("train", f"lonely_here:{name}", *TINY, *places)
        assert (code, err) == (0, [])
        assert any(": evaluation " in line for line in out)


@pytest.mark.usefixtures("lonely")
@pytest.mark.parametrize(("name", "limits"), [("Lonely", (9, 2)), ("made", (9, 2)), ("Lonely-v3", (4, 2, 7))])
def test_a_limit_of_steps_is_put_around_a_class_and_replaces_that_of_an_id(name, limits, swath):
    for limit, options in zip(limits, [(), ("--max-episode-steps=2",), ("--max-episode-steps=7",)], strict=False):
        swath("collect", f"lonely_here:{name}", "--frames=80", "--envs=4", "--out", f"at{limit}", *options)
        rows = open_dataset(f"at{limit}").load()
        assert rows["next", "observation"].max() == limit
        assert bool(rows["next", "truncated"].any()) == (limit < 9)


@pytest.mark.parametrize(
    ("name", "film"),
    [
        ("Drawn", None),
        ("drawn_always", None),
        ("drawn_never", "has no parameter render_mode; give it one, for the env that it makes"),
        ("plain", "has no render mode 'rgb_array'; its metadata['render_modes'] are []"),
    ],
)
def test_a_class_or_function_makes_the_env_of_the_film_if_it_can(name, film, swath):
    _, out, _ = swath("train", f"named_things:{name}", *TINY, "--eval-backend", "none")
    assert Path(f"runs/named_things-{name}-seed0/video.mp4").exists() == (film is None)
    said = [line for line in out if line.startswith("no film: ")]
    assert said == ([] if film is None else [f"no film: named_things:{name} {film}"])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPol-v1", CART_POL),
        (
            "Zzyzx-v0",
            "Environment `Zzyzx` doesn't exist; name one of your own as module:Class, module:function or module:id",
        ),
        (
            "nowhere:X",
            "nowhere:X: no module named nowhere is installed or in this folder; give the command where it is",
        ),
        (
            "named_things:nowhere",
            "named_things:nowhere: named_things has no nowhere, and as an id: Environment `nowhere` doesn't exist"
            + HAS,
        ),
        ("named_things:plian", "named_things:plian: named_things has no plian; did you mean 'plain'?"),
        ("named_things:Plain-v7", "named_things:Plain-v7: named_things has no Plain-v7; did you mean 'Plain'?"),
        (
            "named_things:CartPol-v1",
            "named_things:CartPol-v1: named_things has no CartPol-v1, and as an id: " + CART_POL,
        ),
        (
            "named_things:NamedPlain-v1",
            "named_things:NamedPlain-v1: named_things has no NamedPlain-v1, and as an id: " + NAMED_PLAIN,
        ),
        ("named_things:nothing", "named_things:nothing: named_things has no nothing"),
        ("named_things:", "named_things:: named_things has no name after the colon" + HAS),
        (":X", ":X: no module before the colon; name one in full, such as package.module:Class"),
        ("named/things.py:X", "named/things.py:X: name the module, not its file: named.things:X"),
        ("broken_things:X", "broken_things:X: broken_things cannot be imported: No module named 'nothing_such'"),
        (
            "slipped_things:X",
            "slipped_things:X: slipped_things cannot be imported: slipped_things.py:2: SyntaxError: expected ':'",
        ),
    ],
)
def test_an_env_that_there_is_not_is_told_in_the_same_words_by_all(command, name, message, swath):
    Path("broken_things.py").write_text("import nothing_such")
    Path("slipped_things.py").write_text("import os\nclass X(object)\n    pass")
    importlib.invalidate_caches()
    assert swath(command, name, *COMMANDS[command]) == (2, [], [f"swath: {message}"])


def test_a_policy_that_is_misspelt_is_told_with_the_name_that_may_have_been_meant(swath):
    assert swath("doctor", "CartPole-v1", "--policy", "named_things:act") == (
        2,
        [],
        ["swath: named_things:act: named_things has no act; did you mean 'acts'?"],
    )


def test_a_module_without_envs_is_told_with_its_functions_and_of_many_only_some(swath):
    Path("makes_things.py").write_text("\n".join(f"def make_{name}(): ..." for name in "abcdef"))
    Path("has_things.py").write_text("import os")
    importlib.invalidate_caches()
    (err,) = swath("train", "makes_things:X")[2]
    assert err.endswith("; makes_things has make_a, make_b, make_c, make_d, make_e and others")
    (err,) = swath("train", "has_things:X")[2]
    assert err.endswith("as an id: Environment `X` doesn't exist")


@pytest.mark.parametrize("command", ["train", "collect", "bench"])
def test_an_env_that_exists_cannot_be_shared_out_among_workers(command, swath):
    assert swath(command, "named_things:existing", *COMMANDS[command])[2] == [
        "swath: named_things:existing is a Plain; name a class or function that makes an env, or an id"
    ]


@pytest.mark.parametrize("command", ["train", "collect"])
def test_an_env_that_is_batched_already_is_refused_where_copies_are_stepped(command, swath):
    (err,) = swath(command, "named_things:several", *COMMANDS[command])[2]
    assert err.startswith("swath: named_things:several is batched already (2 envs); name what makes one of them, of ")


@pytest.mark.parametrize("command", ["train", "collect", "bench"])
def test_what_makes_no_env_is_named(command, swath):
    (err,) = swath(command, "named_things:acts", *COMMANDS[command])[2]
    assert err.startswith("swath: named_things:acts: acts() missing 1 required positional argument")


def test_a_policy_of_a_run_acts_in_what_is_batched_already(swath):
    swath("train", "named_things:Plain", *SMALL, "--frames=128", "--no-video", "--out", "run")
    for env in ("several", "existing"):
        _, out, err = swath("doctor", f"named_things:{env}", "--policy", "run", *COMMANDS["doctor"])
        assert err == []
        assert out[0].startswith(f"named_things:{env}, run: ")
