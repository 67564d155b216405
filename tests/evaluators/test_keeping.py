"""The best weights so far, on disk."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from swath.evaluate.record import Episodes
from swath.evaluate.result import EvalResult
from swath.evaluators import Evaluator
from swath.evaluators.keeping import Keeper
from swath.testing import Counting, CountingEnv, Script


def scored(reward):
    one = {"returns": [reward], "lengths": [3], "terminated": [True], "truncated": [False], "seeds": [1]}
    return EvalResult({"eval/reward": reward}, Episodes.of(one))


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
        assert keeper.beaten_by(scored(reward)) is better
        if better:
            keeper.keep(scored(reward), {"policy": {"w": torch.tensor([reward])}, "env.x": {"mean": torch.ones(2)}})
    saved = load_file(tmp_path / "kept" / "best.safetensors")
    assert saved["w"].tolist() == [2.0]
    assert saved["env.x::mean"].tolist() == [1.0, 1.0]
    assert Keeper(tmp_path / "kept" / "best.safetensors", "eval").bar == 2.0


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"swath_eval_result": 1})])
def test_a_file_that_is_no_result_is_not_overwritten(tmp_path, text):
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(ValueError, match="move it away"):
        Keeper(tmp_path, "eval")


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        Keeper(tmp_path / "best.pt", "eval")


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
