"""The examples with TorchRL run; PPO and SAC with our collector and with TorchRL's, by changing one import."""

from functools import partial

import pytest

from example_runs import example, lines_of

OURS, THEIRS = "from swath import Collector", "from torchrl.collectors import Collector"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "frames", "imported"),
    [("torchrl_ppo.py", 1024, OURS), ("torchrl_ppo.py", 1024, THEIRS), ("torchrl_sac.py", 1200, OURS)],
    ids=["ours", "theirs", "another of ours"],
)
def test_an_example_runs_with_either_collector_by_changing_one_import(tmp_path, monkeypatch, name, frames, imported):
    module = example(monkeypatch, name, (f"{OURS}  # {THEIRS}\n", f"{imported}\n"))
    module.evaluate = partial(module.evaluate, **{"envs" if "ppo" in name else "episodes": 2})
    lines = lines_of(monkeypatch, module, tmp_path, "--frames", str(frames), "--curve", "curve.csv")
    assert lines[-1].startswith("mean return of 20 episodes")
    assert (tmp_path / "curve.csv").read_text().startswith("frames,return")


def test_the_example_of_dqn_learns_from_the_buffer_and_says_its_score(tmp_path, monkeypatch):
    module = example(monkeypatch, "torchrl_dqn.py")
    *_, line, score = lines_of(monkeypatch, module, tmp_path, "--frames", "3200")
    assert line.split()[:2] == ["3,200", "frames"]
    assert score.startswith("mean return of 20 episodes: ")
