"""The example of PPO over `RayCollector`, on the cluster that tests share."""

import re

import torch

import ray_cluster
from example_runs import example, lines_of


def test_the_example_of_ppo_trains_and_evaluates_what_it_has_learned(tmp_path, monkeypatch):
    torch.manual_seed(0)
    with ray_cluster.lending():
        *lines, last = lines_of(monkeypatch, example(monkeypatch, "ray_ppo.py"), tmp_path, "--frames", "12000")
    frames, mean = re.match(r" +([\d,]+) frames   return +([\d.]+)   \[", lines[-1]).groups()
    assert frames == "12,288"
    assert float(mean) > 100, "random actions reach 20"
    assert last.startswith("<RayCollector 2 workers")
