"""Envs whose agents have something to learn, and the examples that train on them."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from swath.testing.envs import Nim, TrafficGrid

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


def test_nim_is_played_in_turn_and_won_by_who_takes_the_last_stone():
    env = Nim(stones=7)
    for seed in range(4):
        seen, _ = env.reset(seed=seed)
        left, turn, over = int(np.flatnonzero(seen["first"])[0]), 0, False
        assert 4 <= left <= 7
        while not over:
            mover, other = env.agents[turn], env.agents[1 - turn]
            taken = left % 4 or 1
            seen, rewards, terminated, _, _ = env.step({mover: taken - 1})
            left, over, turn = left - taken, terminated["__all__"], 1 - turn
            assert rewards == ({mover: 1.0, other: -1.0} if over else {mover: 0.0})
            assert over == (left == 0)
            assert {agent: int(np.flatnonzero(each)[0]) for agent, each in seen.items()} == (
                {other: left} if left else {}
            )


def test_what_is_taken_beyond_the_last_stone_is_not_there():
    env = Nim(stones=4)
    env.reset(seed=0)
    env.step({"first": 2})
    assert env.step({"second": 2})[1] == {"second": 1.0, "first": -1.0}


def run(example, folder, *arguments):
    command = [sys.executable, ROOT / "examples" / example, *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True, timeout=100)
    return done.stdout.splitlines()


def test_the_example_of_traffic_trains_both_policies_and_leaves_its_curve(tmp_path):
    run("traffic.py", tmp_path, "--iterations", "2", "--workers", "1")
    with (tmp_path / "traffic.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["iteration"] for row in rows] == ["0", "1"]
    assert all(float(row["car"]) > -100 and float(row["light"]) > -100 for row in rows)


def test_the_example_of_self_play_adds_versions_while_it_runs(tmp_path):
    *lines, last = run("self_play.py", tmp_path, "--iterations", "3", "--workers", "1", "--clearly", "-2")
    assert [line.split()[-2] for line in lines] == ["1", "2", "3"]
    assert last.endswith("of 9 positions that can be won")


def test_the_example_of_ppo_plays_to_the_end_and_leaves_its_curve(tmp_path):
    lines = run("rollout_worker_ppo.py", tmp_path, "--frames", "1024", "--seeds", "0", "1", "--out", "ppo.csv")
    assert [line.split(":")[0] for line in lines] == ["seed 0", "seed 1"]
    assert all(8 < float(line.split()[-1]) <= 500 for line in lines)
    with (tmp_path / "ppo.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["frames"]) for row in rows] == [
        (seed, str(frames)) for seed in "01" for frames in (256, 512, 768, 1024)
    ]
    assert all(8 < float(row["return"]) <= 500 for row in rows)
