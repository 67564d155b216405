"""The best weights on disk, and the example that keeps them."""

import math
import os
import signal
import subprocess
import sys

import pytest
import torch
from evaluator_toys import PLACES, N, evaluator
from safetensors.torch import load_file
from uneven_env import Shifted

from example_runs import example, lines_of
from swath.evaluation.reporting import BestWeights
from swath.evaluation.result import EvalResult, episodes_of
from toys import DEADLINE_S

KILLED = """
import os, signal
from pathlib import Path
import torch
from test_keeping import scored
from swath.evaluation import reporting
from swath.report import checkpoint

def half(path, text):
    path.write_bytes(text[:10].encode())
    os.kill(os.getpid(), signal.SIGKILL)

best_weights = reporting.BestWeights("best.safetensors", "eval")
best_weights.keep(scored(1.0), lambda: {"policy": {"w": torch.tensor([1.0])}})
checkpoint.save_file = lambda tensors, path, metadata: half(Path(path), "half of it")
best_weights.keep(scored(2.0), lambda: {"policy": {"w": torch.tensor([2.0])}})
"""


def scored(reward):
    return EvalResult({"eval/reward": reward}, episodes_of({0: (reward, 3, True, False, 1)}))


class Doubled(Shifted):
    """Two names for one weight, and a buffer."""

    def __init__(self):
        super().__init__()
        self.same = self.shift
        self.register_buffer("calls", torch.zeros(1))


def test_only_better_weights_are_kept_and_an_existing_result_must_be_beaten(tmp_path):
    best_weights = BestWeights(tmp_path / "kept", "eval")
    assert best_weights.reward == -math.inf
    for reward, better in [(1.0, True), (1.0, False), (float("nan"), False), (0.5, False), (2.0, True)]:
        before = best_weights.reward
        weights = {"policy": {"w": torch.tensor([reward])}, "env.x": {"mean": torch.ones(2)}}
        best_weights.keep(scored(reward), lambda weights=weights: weights)
        assert (best_weights.reward > before) is better
    saved = load_file(tmp_path / "kept" / "best.safetensors")
    assert saved["w"].tolist() == [2.0]
    assert saved["env.x::mean"].tolist() == [1.0, 1.0]
    assert BestWeights(tmp_path / "kept" / "best.safetensors", "eval").reward == 2.0


def test_a_file_of_another_kind_or_prefix_is_not_overwritten(tmp_path):
    for text, message in (("[]", "not the JSON of an EvalResult"), (scored(1.0).to_json(), "test/reward")):
        (tmp_path / "best.json").write_text(text)
        with pytest.raises((KeyError, ValueError), match=message):
            BestWeights(tmp_path, "test")


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("place", PLACES)
def test_the_file_loads_with_load_state_dict_and_has_weights_that_were_never_sent(tmp_path, place):
    policy, other = Doubled(), Doubled()
    policy.load_state_dict({"shift": torch.tensor(3.0), "same": torch.tensor(3.0), "calls": torch.ones(1)})
    for folder, weights, kept in (("sent", policy, (3.0, 1.0)), ("built", None, (0.0, 0.0))):
        with evaluator(place, policy_factory=Doubled, keep_best=tmp_path / folder) as ev:
            result = ev.evaluate(weights, step=7)
            assert ev.stats()["write_errors"] == 0
        other.load_state_dict(load_file(tmp_path / folder / "best.safetensors"))
        assert (other.shift.item(), other.calls.item()) == kept
        again = EvalResult.from_json((tmp_path / folder / "best.json").read_text())
        assert (again, again.step) == (result, 7)


def test_a_failed_write_is_counted_and_harms_nothing(tmp_path, caplog):
    with evaluator(keep_best=tmp_path / "folder") as ev:
        (tmp_path / "folder").write_text("in the way")
        result = ev.evaluate()
        assert ev.stats()["write_errors"] == 1
        assert result["eval/num_episodes"] == N
    assert "could not be written" in caplog.text


def test_a_kill_during_the_write_leaves_whole_files_and_the_next_evaluator_goes_on(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    child = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, env=env, timeout=DEADLINE_S, check=False)
    assert child.returncode == -signal.SIGKILL
    best = tmp_path / "best.safetensors"
    assert load_file(best)["w"].tolist() == [1.0]
    best_weights = BestWeights(best, "eval")
    assert best_weights.reward == 1.0
    best_weights.keep(scored(3.0), lambda: {"policy": {"w": torch.tensor([3.0])}})
    assert load_file(best)["w"].tolist() == [3.0]


def test_the_example_beside_ppo_runs_and_leaves_the_best_weights(tmp_path, monkeypatch, fork_server):
    module = example(monkeypatch, "ppo_with_evaluator.py")
    lines = lines_of(monkeypatch, module, tmp_path, "--frames", "2048")
    assert [line.split()[0] for line in lines] == ["1,024", "2,048"]
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["best.json", "best.safetensors"]
