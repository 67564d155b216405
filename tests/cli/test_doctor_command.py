import json
import random
import threading
from importlib import metadata

import gymnasium as gym
import named_things
import numpy as np
import pytest

from swath.cli import doctor as machine
from swath.cli.doctor import (
    Finding,
    look_at_interface,
    look_at_memory,
    look_at_pickling,
    look_at_ray,
    look_at_versions,
)


def only(findings, level):
    (finding,) = findings
    assert finding.level == level
    assert finding.do
    return finding.value


def test_a_healthy_env_and_policy_are_shown_with_their_figures(trained):
    code, out, _ = trained("doctor", "CartPole-v1", "--policy", "runs/CartPole-v1-seed0", "--json")
    told = json.loads("\n".join(out))
    assert code == 0
    assert {finding["level"] for finding in told["findings"]} <= {"note", "warning"}
    assert set(told["figures"]) == {"random_actions_frames_per_second", "policy_frames_per_second"}


class Careless(named_things.Doubtful):
    """Draws from the process's generator, and observes another dtype than its space says."""

    def _look(self):
        return np.full(2, random.random())


def test_everything_is_looked_at_and_an_error_fails(swath, monkeypatch):
    monkeypatch.setattr(named_things, "Careless", Careless, raising=False)
    code, out, err = swath("doctor", "named_things:Careless")
    assert (code, err) == (1, [])
    assert "note: interface: observations are float64, their space says float32" in out
    assert any(line.startswith("error: interface: Deterministic ") for line in out)
    assert any(line.startswith("error: seeds: two envs of one seed differ: ") for line in out)
    assert any(line.startswith("  do: fix it in the env; ") for line in out)
    assert any(line.endswith(" frames/s") for line in out)


def test_what_cannot_travel_is_found():
    door = threading.Lock()
    assert only(look_at_pickling(lambda: door, None), "error").startswith(
        "the env's maker cannot be pickled: TypeError"
    )
    assert only(look_at_pickling("CartPole-v1", lambda obs: door), "error").startswith("the policy cannot be pickled")


@pytest.mark.parametrize(("mode", "levels"), [("SAME_STEP", []), ("NEXT_STEP", ["warning"]), (None, ["error"])])
def test_the_autoreset_mode_of_a_vector_env_is_looked_at(mode, levels):
    def make():
        env = named_things.several()
        env.metadata = {**env.metadata, "autoreset_mode": mode and gym.vector.AutoresetMode[mode]}
        return env

    assert [finding.level for finding in look_at_interface(make)] == levels


def test_packages_that_are_too_old_are_found(monkeypatch):
    have = {"torch": "2.4.1+cpu", "ray": "2.1.0", "rich": "99"}

    def version(name):
        if name not in have:
            raise metadata.PackageNotFoundError(name)
        return have[name]

    wanted = ["torch>=2.5", 'ray>=2.40; extra == "ray"', "rich>=13", "absent>=1", 'ruff>=9; extra == "dev"']
    monkeypatch.setattr(machine, "requires", lambda name: wanted)
    monkeypatch.setattr(machine, "version", version)
    assert [(one.level, one.what, one.do) for one in look_at_versions()] == [
        ("error", "torch", 'pip install --upgrade "torch>=2.5"'),
        ("warning", "ray", 'pip install --upgrade "ray>=2.40"'),
    ]


@pytest.mark.parametrize(("free", "found"), [(2**20, 1), (2**60, 0)])
def test_too_little_shared_memory_for_ray_is_found(free, found, monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "SHM", tmp_path)
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert [one.level for one in look_at_memory()] == ["warning"] * found


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """What Ray's cluster is to answer."""
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    monkeypatch.setattr(machine.Path, "home", lambda: tmp_path)

    def answers(**answer):
        monkeypatch.setattr(machine, "ask", lambda environment: answer)

    return answers


def at_ray(environment, *, workers=1, wanted=True) -> list[Finding]:
    return list(look_at_ray(workers, environment, wanted=wanted))


NOWHERE = "ConnectionError: Could not find any running Ray instance. Please specify"


def test_a_cluster_that_does_not_answer_or_has_no_room_is_found(cluster):
    there = {"RAY_ADDRESS": "10.0.0.1:6379"}
    cluster(said=NOWHERE)
    assert at_ray({}) == [], "it will be begun"
    assert only(at_ray(there), "error") == NOWHERE
    assert only(at_ray(there, wanted=False), "warning") == NOWHERE
    cluster(cpus=4.0)
    assert at_ray(there, workers=4) == []
    cluster(cpus=1.0)
    assert only(at_ray({}, workers=3), "error") == "3 on 1 CPUs"
    assert only(at_ray({"RAY_ADDRESS": "ray://here:10001"}), "error") == "ray://here:10001"


def test_a_token_that_is_refused_is_named_with_its_place(cluster, tmp_path):
    cluster(said="AuthenticationError", refused=True)
    wrong = "is missing or refused; RAY_AUTH_MODE is"
    assert only(at_ray({}), "error") == f"the one in {tmp_path}/.ray/auth_token {wrong} not set"
    given = {"RAY_AUTH_TOKEN": "x", "RAY_AUTH_MODE": "token"}
    assert only(at_ray(given), "error") == f"the one in RAY_AUTH_TOKEN {wrong} token"
