"""The example of PPO over a simulator of tensors learns, wherever its tensors are."""

import re

import pytest

from example_runs import example, lines_of


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_pendulums_stand_up(tmp_path, monkeypatch, device):
    module = example(monkeypatch, "pendulums.py")
    words = ["--device", device, "--envs", "256", "--frames", "172032"]
    first, *_, last = lines_of(monkeypatch, module, tmp_path, *words)
    (early, before), (late, after) = (_numbers(line) for line in (first, last))
    assert (early, late) == ("8,192", "172,032")
    assert float(before) < -1000
    assert float(after) > -800


def _numbers(line):
    return re.match(r" *([\d,]+) frames   return +(-[\d.]+)   +\d+% upright", line).groups()
