import csv
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("fork_server")

TINY = ("--rounds", "1", "--seconds", "0", "--batch", "16")


def places(out):
    rows = (line.split()[:3] for line in out if line.strip().startswith(("inline", "process", "thread")))
    return list(map(tuple, rows))


def test_a_row_for_every_setting_and_the_best_one_as_a_command(swath):
    options = ("--backends", "inline,process", "--workers", "1,2", "--envs", "2", "--policy", "named_things:acts")
    code, out, err = swath("bench", "named_things:plain", *options, *TINY, "--out", "figures.csv")
    assert (code, err) == (0, [])
    workers = [("inline", "1"), ("process", "1"), ("process", "2")]
    assert places(out) == [(*setting, "2") for setting in workers]
    assert any(re.fullmatch(r"swath .*, torch .*, numpy .*; \d+ CPUs; GPU: .+", line) for line in out)
    assert out[-2].startswith("best: ")
    assert out[-2].endswith(" frames/s")
    assert out[-1].startswith("to train so: swath train named_things:plain --envs ")
    rows = list(csv.DictReader(Path("figures.csv").read_text().splitlines()))
    assert [tuple(row.values())[:3] for row in rows] == places(out)
    assert all(float(row["frames_per_second"]) > 0 for row in rows)


def test_env_processes_are_measured_and_part_of_the_command(swath):
    options = ("--backends", "inline", "--envs", "1,2", "--env-processes", "2")
    code, out, _ = swath("bench", "CartPole-v1", *options, *TINY)
    assert code == 0
    assert re.search(r"--env-processes [12]", out[-1])


def test_a_batched_env_has_no_number_of_envs(swath):
    code, out, _ = swath("bench", "named_things:several", "--backends=inline,thread", "--workers=1", *TINY)
    assert code == 0
    assert places(out) == [("inline", "1", "-"), ("thread", "1", "-")]
