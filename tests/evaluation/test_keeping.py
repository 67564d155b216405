"""The best weights so far, on disk."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from swath.evaluation.reporting import Keeper
from swath.evaluation.result import EvalResult, episodes_of
from swath.evaluators import Evaluator
from swath.testing import Counting, CountingEnv, Script

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from test_keeping import scored
from swath.evaluation import reporting

def half(path, text):
    path.write_bytes(text[:10].encode())
    os.kill(os.getpid(), signal.SIGKILL)

keeper = reporting.Keeper("best.safetensors", "eval")
keeper.keep(scored(1.0), lambda: {"policy": {"w": torch.tensor([1.0])}})
reporting.save_file = lambda tensors, path: half(Path(path), "half of it")
keeper.keep(scored(2.0), lambda: {"policy": {"w": torch.tensor([2.0])}})
"""


def scored(reward):
    return EvalResult({"eval/reward": reward}, episodes_of({0: (reward, 3, True, False, 1)}))


class Level(torch.nn.Module):
    """Two names for one weight, and a buffer."""

    def __init__(self):
        super().__init__()
        self.level = torch.nn.Parameter(torch.zeros(1))
        self.same = self.level
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, observation):
        return (observation[..., 0] * 0 + self.level[0]).long()


def evaluator(path, **options):
    def env():
        return CountingEnv(0, Counting(script=Script((3, 5), endings=("terminated",))))

    return Evaluator(env, policy_factory=Level, num_trajectories=2, keep_best=path, **options)


def test_only_what_is_better_is_kept_and_what_is_found_sets_the_bar(tmp_path):
    keeper = Keeper(tmp_path / "kept", "eval")
    assert keeper.bar == -math.inf
    for reward, better in [(1.0, True), (1.0, False), (float("nan"), False), (0.5, False), (2.0, True)]:
        before = keeper.bar
        weights = {"policy": {"w": torch.tensor([reward])}, "env.x": {"mean": torch.ones(2)}}
        keeper.keep(scored(reward), lambda weights=weights: weights)
        assert (keeper.bar > before) is better
    saved = load_file(tmp_path / "kept" / "best.safetensors")
    assert saved["w"].tolist() == [2.0]
    assert saved["env.x::mean"].tolist() == [1.0, 1.0]
    assert Keeper(tmp_path / "kept" / "best.safetensors", "eval").bar == 2.0


def test_a_file_that_is_no_result_or_that_of_another_prefix_is_not_overwritten(tmp_path):
    for text, said in (("[]", "not the JSON of an EvalResult"), (scored(1.0).to_json(), "test/reward")):
        (tmp_path / "best.json").write_text(text)
        with pytest.raises((KeyError, ValueError), match=said):
            Keeper(tmp_path, "test")


@pytest.mark.parametrize("place", ["thread", "process"])
def test_the_file_loads_with_load_state_dict(tmp_path, place):
    policy = Level()
    with torch.no_grad():
        policy.level.fill_(1.0)
    with evaluator(tmp_path / "best.safetensors", backend=place) as ev:
        result = ev.evaluate(policy, step=7)
    other = Level()
    other.load_state_dict(load_file(tmp_path / "best.safetensors"))
    assert other.level.item() == 1.0
    again = EvalResult.from_json((tmp_path / "best.json").read_text())
    assert again == result
    assert again.step == 7


@pytest.mark.parametrize("place", ["thread", "process"])
def test_weights_that_were_never_sent_are_fetched(tmp_path, place):
    with evaluator(tmp_path, backend=place) as ev:
        ev.evaluate()
        assert ev.stats()["write_errors"] == 0
    assert set(load_file(tmp_path / "best.safetensors")) == {"level", "same", "calls"}


def test_a_failed_write_is_counted_and_harms_nothing(tmp_path, caplog):
    with evaluator(tmp_path / "folder") as ev:
        (tmp_path / "folder").write_text("in the way")
        result = ev.evaluate()
        assert ev.stats()["write_errors"] == 1
        assert result["eval/num_episodes"] == 2
    assert "could not be written" in caplog.text


def test_a_kill_during_the_write_leaves_whole_files_and_the_next_evaluator_goes_on(tmp_path):
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent)]
    child = subprocess.run(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=100, check=False)
    assert child.returncode == -signal.SIGKILL
    best = tmp_path / "best.safetensors"
    assert load_file(best)["w"].tolist() == [1.0]
    keeper = Keeper(best, "eval")
    assert keeper.bar == 1.0
    keeper.keep(scored(3.0), lambda: {"policy": {"w": torch.tensor([3.0])}})
    assert load_file(best)["w"].tolist() == [3.0]
