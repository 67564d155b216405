import csv
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from swath.bench import Setting
from swath.cli.bench_config import MOST_WORKERS, doubled
from swath.cli.bench_failures import Failures
from swath.errors import WorkerLost

LOCKED = ["step", "self.open()", "open", 'raise ValueError("the door is locked")']
TINY = ("--rounds", "1", "--seconds", "0", "--batch", "16")


@pytest.mark.usefixtures("warm_processes")
def test_figures_of_every_setting_and_the_best_one_with_its_code(swath):
    options = ("--backends", "inline,process", "--workers", "1,2", "--envs", "1,4", "--policy", "named_things:acts")
    code, out, err = swath("bench", "named_things:plain", *options, *TINY)
    assert (code, err) == (0, [])
    assert out[0] == "named_things:plain, named_things:acts: 6 settings, 1 round"
    rows = [line.split()[:3] for line in out if line.strip().startswith(("inline", "process"))]
    assert rows == [
        ["inline", "1", "1"],
        ["inline", "1", "4"],
        ["process", "1", "1"],
        ["process", "1", "4"],
        ["process", "2", "1"],
        ["process", "2", "4"],
    ]
    assert any(line.startswith("fastest of one round: ") and line.endswith(" frames/s") for line in out)
    assert out[-2].startswith("in code: Collector(plain, policy, frames_per_batch=16")
    assert out[-1].startswith("on the command line: swath train named_things:plain --envs ")


def test_the_best_setting_of_an_id_is_a_command_line_too(swath):
    _, out, _ = swath("bench", "CartPole-v1", "--backends", "inline", "--envs", "2", *TINY)
    assert out[-3].startswith("best: 2 envs in this process, ")
    assert out[-2] == "in code: Collector('CartPole-v1', frames_per_batch=16, envs_per_worker=2)"
    assert out[-1] == ("on the command line: swath train CartPole-v1 --envs 2 --workers 1 --backend inline --batch 16")


def test_one_round_names_no_best_and_says_why(swath):
    settings = ("bench", "CartPole-v1", "--backends=inline", "--envs=1,2", "--seconds=0", "--batch=16")
    warning = "one round tells nothing about noise; --rounds 3 says which are as fast"
    for rounds, words in ((1, "fastest of one round"), (2, "best")):
        _, out, _ = swath(*settings, "--rounds", rounds)
        assert any(line.startswith(f"{words}: ") for line in out)
        assert (warning in out) == (rounds == 1)


def test_figures_are_written_as_a_table_or_as_json(swath):
    for name in ("figures.csv", "figures.json"):
        code, out, _ = swath("bench", "CartPole-v1", "--backends=inline", "--envs=1,2", "--out", name, *TINY)
        assert code == 0
        assert f"figures in {name}" in out
    rows = list(csv.DictReader(Path("figures.csv").read_text().splitlines()))
    told = json.loads(Path("figures.json").read_text())
    assert [row["envs"] for row in rows] == ["1", "2"]
    assert [score["envs"] for score in told["scores"]] == [1, 2]
    assert told["config"]["batch"] == 16
    assert "torch" in told["versions"]


def test_an_env_that_is_batched_already_is_measured_as_it_is(swath):
    code, out, _ = swath("bench", "named_things:several", "--backends=inline,thread", "--workers=1", *TINY)
    assert code == 0
    assert [line.split()[:3] for line in out if line.strip().startswith(("inline", "thread"))] == [
        ["inline", "1", "-"],
        ["thread", "1", "-"],
    ]


def test_where_everything_fails_the_command_fails_and_says_why(swath):
    code, out, _ = swath(
        "bench", "CartPole-v1", "--policy", "named_things:acts_twice", "--backends=inline", "--envs=1", *TINY
    )
    assert code == 1
    assert out[-1].startswith("failed: 1 env in this process: ValueError: the policy's 'action' has shape ")


def test_what_an_env_raises_in_all_settings_is_told_once_by_the_user_s_lines(swath):
    settings = ("--backends=inline,thread", "--workers=1,2", "--envs=1,2")
    code, out, _ = swath("bench", "mistaken_env:Mistaken", *settings, *TINY)
    assert code == 1
    told = next(at for at, line in enumerate(out) if line.startswith("failed: "))
    assert out[told] == "failed: all 6 settings: ValueError: the door is locked"
    assert [line.rpartition(", in ")[2].strip() for line in out[told + 1 : -2]] == LOCKED
    assert out[-2].startswith("raised by env 0 (seed ")
    assert out[-1] == "`swath doctor mistaken_env:Mistaken` looks at the env alone"


def test_settings_that_fail_alike_are_named_together_and_others_apart():
    failures = Failures("CartPole-v1")
    for workers, why in ((1, "worker 0 (life 0) is gone"), (2, "worker 1 (life 4) is gone"), (3, "no room")):
        failures.note(Setting("process", workers, 1), WorkerLost(why))
    assert failures.lines(4) == [
        "failed: 1 process worker of 1 env; 2 process workers of 1 env: WorkerLost: worker 0 (life 0) is gone",
        "failed: 3 process workers of 1 env: WorkerLost: no room",
    ]


INLINE = ("--backends", "inline", "--envs", "1,2", "--seconds", "0", "--batch", "16")
"""Two settings; a turn takes two batches, of 16 steps of all envs each."""


def test_ctrl_c_leaves_what_was_measured_and_ends_as_elsewhere(swath, interrupting):
    interrupting(16 * 2 * 2 + 16 + 5)  # in the last batch but one of the second round
    code, out, err = swath("bench", "Scripted-v0", *INLINE, "--rounds", "2", "--out", "figures.csv")
    assert (code, err) == (130, [])
    rows = [line.split() for line in out if line.strip().startswith("inline")]
    assert [(row[2], len(row)) for row in rows] == [("1", 7), ("2", 7)]
    assert any(line.startswith("fastest of one round: ") for line in out)
    assert out[-1] == "interrupted after 2 of 4 turns"
    assert len(Path("figures.csv").read_text().splitlines()) == 3


def test_ctrl_c_in_the_first_round_leaves_a_table_without_a_best(swath, interrupting):
    interrupting(16 * 2 + 5)
    code, out, _ = swath("bench", "Scripted-v0", *INLINE)
    assert code == 130
    assert [line.split()[3:] for line in out if line.strip().startswith("inline")][1] == ["no", "turn"]
    assert not any(line.startswith(("best: ", "fastest ")) for line in out)
    assert out[-1] == "interrupted after 1 of 6 turns"


def test_ctrl_c_before_anything_was_measured_leaves_no_table(swath, interrupting):
    interrupting(5)
    code, out, _ = swath("bench", "Scripted-v0", *INLINE, "--out", "figures.csv")
    assert (code, out[1:]) == (130, ["interrupted before anything was measured"])
    assert not Path("figures.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "bench: name an env, such as: swath bench CartPole-v1"),
        (
            ["named_things:several", "--envs=2"],
            "--envs: named_things:several is batched already (2 envs); leave it out",
        ),
        (["CartPole-v1", "--envs=1,x"], "--envs 1,x must be whole numbers with commas, such as 1,4,8"),
        (["CartPole-v1", "--workers=0"], "numbers of workers and envs must be at least 1, not 0"),
        (["CartPole-v1", "--backends=moon"], "--backend moon must be one of inline, thread, process, ray"),
        (["CartPole-v1", "--batch=0"], "--batch 0 must be at least 1"),
        (["CartPole-v1", "--rounds=0"], "rounds=0 must be at least 1"),
        (["CartPole-v1", "--device=moon"], "--device moon cannot be used here"),
        (["CartPole-v1", "--out=/"], "--out / is a folder; name a file in it, such as /bench.csv"),
        (["CartPole-v1", "--out=figures.txt"], "--out figures.txt must end in one of .csv, .json"),
    ],
)
def test_what_the_user_can_put_right_is_one_line(arguments, message, swath):
    code, out, err = swath("bench", *arguments)
    assert (code, out, len(err)) == (2, [], 1)
    assert err[0].startswith("swath: " + message)


def test_figures_that_can_be_written_nowhere_are_not_measured(swath):
    Path("file").touch()
    assert swath("bench", "CartPole-v1", "--out=file/figures.csv", *TINY) == (
        2,
        [],
        ["swath: --out file cannot be a folder: File exists; choose another one"],
    )


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no disk that is always full")
@pytest.mark.parametrize("name", ["figures.csv", "figures.json"])
def test_a_full_disk_is_one_line_and_leaves_the_figures_on_the_screen(name, swath, monkeypatch):
    monkeypatch.setattr("swath.cli.bench.replacing", lambda out: nullcontext(FULL))
    code, out, err = swath("bench", "CartPole-v1", "--backends=inline", "--envs=1", "--out", name, *TINY)
    assert (code, len(err)) == (1, 1)
    assert err[0] == (
        f"swath: --out {name} cannot be written: No space left on device; the figures stand above: make room, or name "
        "another file next time"
    )
    assert any(line.startswith("on the command line: ") for line in out)


def test_workers_are_doubled_up_to_the_cpus():
    assert [doubled(cpus) for cpus in (1, 2, 3, 6)] == [(1,), (1, 2), (1, 2), (1, 2, 4)]
    assert doubled(1000)[-1] == MOST_WORKERS
