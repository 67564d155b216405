"""The example with an evaluator beside PPO runs, and leaves the best weights."""

from example_runs import example, lines_of


def test_the_example_runs_and_leaves_the_best_weights(tmp_path, monkeypatch):
    module = example(monkeypatch, "ppo_with_evaluator.py")
    lines = lines_of(monkeypatch, module, tmp_path, "--frames", "2048")
    assert [line.split()[0] for line in lines] == ["1,024", "2,048"]
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["best.json", "best.safetensors"]
