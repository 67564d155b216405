import json
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from cli_toys import TINY

from swath.cli.actors import actor_named
from swath.doctor import Level, Machine
from swath.doctor.machine import Threads
from swath.doctor.ray_facts import RayFacts

FEW = ("--steps", "40")


pytestmark = pytest.mark.usefixtures("healthy_machine", "warm_processes")


def test_a_healthy_env_and_policy_are_told_with_their_figures(swath):
    code, out, err = swath("doctor", "named_things:plain", "--policy", "named_things:acts", *FEW)
    assert (code, err) == (0, [])
    assert out[0] == "named_things:plain, named_things:acts: 14 looks"
    assert out[-1] == "nothing is wrong"
    assert [line.partition(":")[0] for line in out[1:-1]] == [
        "the env alone",
        "a Collector of 8 envs with random actions",
        "a Collector of 8 envs with the policy",
    ]


def test_figures_are_told_with_the_number_of_envs(swath):
    for env, words in (("plain", "a Collector of 3 envs"), ("existing", "a Collector of 1 env")):
        _, out, _ = swath("doctor", f"named_things:{env}", "--envs", "3", *FEW)
        assert any(line.startswith(f"{words} with random actions: ") for line in out)


def test_an_error_is_told_with_what_to_do_and_fails(swath):
    code, out, err = swath("doctor", "named_things:Doubtful", *FEW)
    assert (code, err) == (1, [])
    assert out[1:4] == [
        "error: dtype of 'observation': float64",
        "  wanted: float32, as its space says",
        "  do: return np.asarray(observation, dtype=float32), or declare observation_space with dtype=float64",
    ]
    assert out[4].startswith("not looked at: collecting, ")
    assert out[-1] == "1 error"


@pytest.mark.usefixtures("usual_sigterm")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_an_examination_is_one_line_and_leaves_nothing_behind(number, code, swath, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Machine, "here", lambda: signal.raise_signal(number))
    assert swath("doctor", "named_things:plain", *FEW) == (code, [], ["swath: interrupted"])
    assert list(tmp_path.iterdir()) == []


def test_an_env_that_hangs_is_told_with_its_line_and_the_way_to_wait_longer(swath):
    code, out, err = swath("doctor", "named_things:Waiting", "--patience", "3", *FEW)
    assert (code, err) == (1, [])
    assert out[1].startswith("error: env.step: has not come back in 3 s: it is in step, ")
    assert "named_things.py:" in out[1]
    assert out[3].endswith("allow more: --patience 30")
    assert out[-1] == "1 error"


def test_an_env_that_hangs_where_a_checkpoint_is_held_against_it_is_one_line(swath):
    swath("train", "named_things:plain", *TINY, "--no-video")
    code, out, err = swath(
        "doctor", "named_things:unborn", "--policy", "runs/named_things-plain-seed0", "--patience", "3"
    )
    assert (code, out, len(err)) == (1, [], 1)
    assert err[0].startswith("swath: building the env: has not come back in 3 s: it is in unborn, ")


MODULES = {
    "hung_here": ("import threading\nthreading.Event().wait()\n", 3, "importing a module: has not come back in 3 s"),
    "left_here": ("print('hello')\nraise SystemExit('no licence')\n", 60, "SystemExit: no licence"),
    "typo_here": ("import os\nos.environ['NO_SUCH_LICENCE']\n", 60, "KeyError: 'NO_SUCH_LICENCE'"),
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_hangs_or_exits_while_it_is_imported_is_told_with_its_line(module, swath):
    text, patience, words = MODULES[module]
    Path(f"{module}.py").write_text(text)
    code, out, err = swath("doctor", f"{module}:Maze", "--patience", f"{patience}")
    assert (code, out) == (1, [])
    assert err[0].startswith(f"swath: {words}")
    assert any(f"{module}.py:2" in line for line in err)
    assert all("swath doctor" not in line for line in err)
    assert module not in sys.modules


def test_scripts_read_what_was_found(swath):
    code, out, _ = swath("doctor", "named_things:plain", "--policy", "named_things:acts_twice", "--json", *FEW)
    told = json.loads("\n".join(out))
    assert code == 1
    assert told["env"] == "named_things:plain"
    assert [finding["what"] for finding in told["findings"]] == ["answers of the policy"]
    assert told["left_out"] == ["speed"]


def test_what_scripts_read_is_json_alone_also_where_colours_are_forced(swath, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, _ = swath("doctor", "named_things:plain", "--json", *FEW)
    assert json.loads("\n".join(out))["findings"] == []


def test_what_is_only_noted_does_not_fail_unless_it_is_asked_for(swath, monkeypatch):
    without = Machine(Threads(64, 1), None, RayFacts(None))
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: without))
    for options, code, level in (((), 0, Level.NOTE), (("--backend", "ray"), 1, Level.ERROR)):
        answer, out, _ = swath("doctor", "named_things:plain", *FEW, *options)
        assert answer == code
        assert out[1] == f"{level.value}: Ray: not installed"
        assert out[-1] == f"1 {level.value}"


def test_a_trained_policy_is_examined(swath):
    swath("train", "CartPole-v1", *TINY, "--no-video")
    code, out, _ = swath("doctor", "CartPole-v1", "--policy", "runs/CartPole-v1-seed0", *FEW)
    assert code == 0
    assert out[0].startswith("CartPole-v1, runs/CartPole-v1-seed0: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "doctor: name an env, such as: swath doctor CartPole-v1"),
        (["named_things:LENGTH"], "named_things:LENGTH: an env source is of type int; it must be"),
        (["CartPole-v1", "--policy", "named_things:nowhere"], "named_things:nowhere: named_things has no nowhere"),
        (["CartPole-v1", "--policy", "nowhere"], "no checkpoint at nowhere"),
        (["CartPole-v1", "--policy=a", "--policy-factory=b:c"], "--policy and --policy-factory are two ways"),
        (["CartPole-v1", "--backend", "moon"], "--backend moon must be one of inline, thread, process, ray"),
        (["CartPole-v1", "--steps", "0"], "steps=0 must be at least 1"),
        (["CartPole-v1", "--patience", "0"], "patience=0.0 must be more than 0 seconds"),
        (["CartPole-v1", "--envs", "0"], "envs=0 must be at least 1"),
    ],
)
def test_what_the_user_can_put_right_is_one_line(arguments, message, swath):
    code, out, err = swath("doctor", *arguments)
    assert (code, out, len(err)) == (2, [], 1)
    assert err[0].startswith("swath: " + message)


def test_who_acts_may_be_built_in_each_worker():
    import named_things

    actor = actor_named(None, "named_things:build", "CartPole-v1")
    assert (actor.policy, actor.factory, actor.words) == (None, named_things.build, "named_things:build")
