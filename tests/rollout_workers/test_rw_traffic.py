"""The env of cars and lights, and the example that trains on it."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from swath.testing.envs import TrafficGrid

ROOT = Path(__file__).parent.parent.parent


def test_what_drives_at_an_open_light_passes_and_earns_and_at_a_closed_one_pays():
    env = TrafficGrid(num_cars=6, num_lights=2, length=40)
    seen, _ = env.reset(seed=3)
    passed = paid = 0
    for step in range(1, 41):
        before, crossing = seen, env._crossing.copy()
        drive = {agent: 1 if agent.startswith("car") else step // 4 % 2 for agent in env.agents}
        seen, rewards, _, truncated, _ = env.step(drive)
        for car in range(6):
            left, is_open, _ = before[f"car_{car}"]
            at_light = left == 0
            assert rewards[f"car_{car}"] == (-2.0 if at_light and not is_open else 1.0)
            passed += bool(at_light and is_open)
            paid += bool(at_light and not is_open)
            assert (env._crossing[car] != crossing[car]) == bool(at_light and is_open)
        assert truncated["__all__"] == (step == 40)
    assert passed > 20
    assert paid > 5


def test_lights_earn_what_passes_and_lose_by_who_waits():
    env = TrafficGrid(num_cars=4, num_lights=2)
    env.reset(seed=0)
    env._left[:], env._crossing[:], env._road[:] = 0, [0, 0, 0, 1], [0, 1, 1, 0]
    env._open[:] = [1, 1]
    stay = {**dict.fromkeys(env._cars, 1), "light_0": 0, "light_1": 0}
    seen, rewards, _, _, _ = env.step(stay)
    np.testing.assert_allclose([rewards["light_0"], rewards["light_1"]], [2 - 0.1, -0.1])
    assert env._crossing.tolist() == [0, 1, 1, 1]
    np.testing.assert_allclose(seen["light_0"], [0.25, 0, 0])
    np.testing.assert_allclose(seen["light_1"], [0.25, 0, 0])


def test_the_example_trains_both_policies_and_leaves_its_curve(tmp_path):
    command = [sys.executable, ROOT / "examples/traffic.py", "--iterations", "2", "--workers", "1"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=100)
    with (tmp_path / "traffic.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["iteration"] for row in rows] == ["0", "1"]
    assert all(float(row["car"]) > -100 and float(row["light"]) > -100 for row in rows)
