import json
import random
import re
import threading
from functools import partial
from importlib import metadata
from pathlib import Path

import gymnasium as gym
import named_things
import numpy as np
import pytest
import torch
from cli_toys import TINY
from tensordict.nn import TensorDictModule

from swath.cli import doctor as machine
from swath.cli.doctor import (
    Finding,
    check_interface,
    check_memory,
    check_pickling,
    check_ray,
    check_torchrl,
    check_versions,
)


def only(findings, level):
    (finding,) = findings
    assert finding.level == level
    assert finding.do
    return finding.value


def test_a_healthy_env_and_policy_are_shown_with_their_figures(trained):
    code, out, _ = trained("doctor", "CartPole-v1", "--policy", "runs/CartPole-v1-seed0", "--json")
    report = json.loads("\n".join(out))
    assert code == 0
    assert {finding["level"] for finding in report["findings"]} <= {"note", "warning"}
    assert set(report["figures"]) == {"random_actions_frames_per_second", "policy_frames_per_second"}
    assert re.fullmatch(r"swath .*, torch .*, numpy .*; \d+ CPUs; GPU: .+", report["machine"])
    assert set(report["plans"].values()) == {""}, "arrays and a module that is called with tensors need none"


@pytest.mark.filterwarnings("ignore::Warning:torchrl", "ignore::Warning:tensordict")
def test_doctor_says_whether_an_env_and_a_policy_have_a_plan(swath, monkeypatch):
    envs = pytest.importorskip("torchrl.envs")
    monkeypatch.setattr(machine, "SECONDS", 0)
    policy = TensorDictModule(torch.nn.LazyLinear(1), in_keys=["observation"], out_keys=["action"])
    for name, thing in {"pendulum": lambda: envs.GymEnv("Pendulum-v1"), "linear": policy}.items():
        monkeypatch.setattr(named_things, name, thing, raising=False)
    _, out, _ = swath("doctor", "named_things:pendulum", "--policy", "named_things:linear")
    assert "plan of the env: on" in out
    assert "plan of env and policy: on" in out
    subclass = type("OwnEnv", (envs.GymEnv,), {})
    monkeypatch.setattr(named_things, "pendulum", lambda: subclass("Pendulum-v1"))
    _, out, _ = swath("doctor", "named_things:pendulum", "--json")
    assert json.loads("\n".join(out))["plans"]["the env"] not in {"", "on"}


class Careless(named_things.Doubtful):
    """Draws from the process's generator, and observes another dtype than its space."""

    def _look(self):
        return np.full(2, random.random())


def test_doctor_reports_all_findings_and_fails_on_an_error(swath, monkeypatch):
    monkeypatch.setattr(named_things, "Careless", Careless, raising=False)
    code, out, err = swath("doctor", "named_things:Careless")
    assert (code, err) == (1, [])
    assert any(line.startswith("note: interface: observations are float64 of shape (2,) from ") for line in out)
    assert any(line.startswith("error: interface: Deterministic ") for line in out)
    assert any(line.startswith("error: seeds: two envs of one seed differ: ") for line in out)
    assert any(line.startswith("  do: fix it in the env; ") for line in out)
    assert any(line.endswith(" frames/s") for line in out)


class Odd(named_things.Plain):
    """Observes an attribute of its class, whatever its space is."""

    def _look(self):
        return np.array(self.observation)


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (np.int64([3, 4]), "int64 of shape (2,) from 3 to 4"),
        (np.float32([3, 4, 5]), "float32 of shape (3,) from 3 to 5"),
        (np.float32([3, 40]), "float32 of shape (2,) from 3 to 40"),
    ],
)
def test_observations_outside_their_space_are_an_error(observation, words):
    (finding,) = check_interface(type("Odd", (Odd,), {"observation": observation}))
    assert finding.level == "error"
    assert finding.value == f"observations are {words}, their space says float32 of shape (2,) from 0 to 8"
    assert finding.do == "return values of the space, or correct the space"


def test_wrappers_that_change_observations_are_part_of_the_env():
    space, wrappers = gym.spaces.Box(-1, 1, (8,), np.float32), gym.wrappers
    stacked = partial(wrappers.FrameStackObservation, stack_size=4)
    for wrap in (stacked, wrappers.FlattenObservation, wrappers.TimeAwareObservation):
        findings = check_interface(lambda wrap=wrap: wrap(gym.make("Acrobot-v1")))
        assert {finding.level for finding in findings} <= {"note"}
    lying = partial(wrappers.TransformObservation, func=lambda _: np.full(8, 2, np.float32), observation_space=space)
    assert "of shape (8,) from 2 to 2, their space says" in only(
        check_interface(lambda: lying(gym.make("CartPole-v1"))), "error"
    )


def test_a_mistake_of_a_policy_is_shown_with_few_lines_of_the_library(swath, monkeypatch):
    monkeypatch.setattr(named_things, "wide", lambda observation: observation > 2, raising=False)
    code, out, _ = swath("doctor", "named_things:plain", "--policy", "named_things:wide")
    assert code == 1
    assert any(line.startswith("error: policy: ") for line in out)
    assert 1 <= sum(line.startswith('  File "') for line in out) <= 3


class Undefined(named_things.Plain):
    """Gives a reward that is NaN in its third step."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, float("nan") if self._at == 3 else reward, *rest


def test_a_nan_reward_is_reported_with_step_seed_and_action(swath, monkeypatch):
    monkeypatch.setattr(named_things, "Undefined", Undefined, raising=False)
    code, out, _ = swath("doctor", "named_things:Undefined")
    assert code == 1
    at = next(place for place, line in enumerate(out) if "NonFinite" in line)
    assert re.match(r"error: collecting: NonFinite: next 'reward' is not finite in env 0, step 2 \(seed \d+\)", out[at])
    assert re.search(r" after the action \[[01]\]: nan; ", out[at])
    assert out[at + 1].startswith("  do: find what step or reset, or the policy, computes it from: divisions by 0, ")


def test_training_with_a_nan_reward_names_the_doctor(swath, monkeypatch):
    monkeypatch.setattr(named_things, "Undefined", Undefined, raising=False)
    code, _, (line,) = swath("train", "named_things:Undefined", *TINY, "--no-video")
    assert code == 1
    assert line.startswith("swath: after update 1 {")
    assert "`swath doctor named_things:Undefined` checks the env" in line
    assert "check_finite" not in line
    assert "--resume" not in line


def test_an_extension_of_torchrl_that_does_not_load_is_found(monkeypatch):
    pytest.importorskip("torchrl")

    def missing(*arguments, **options):
        raise ImportError("undefined symbol")

    monkeypatch.setattr("torchrl.data.PrioritizedSampler", missing)
    (finding,) = check_torchrl()
    assert finding.level == "warning"
    assert finding.what.startswith("torchrl ")
    assert "its compiled extension does not load with torch " in finding.value


def test_damaged_files_of_a_dataset_and_a_run_are_found(trained):
    run, data = Path("runs/CartPole-v1-seed0"), Path("data")
    trained("collect", "CartPole-v1", "--frames", "32", "--envs", "2", "--out", data)
    for folder, file in ((data, data / "part-000000" / "action.memmap"), (run, run / "best.safetensors")):
        assert trained("doctor", folder)[:2] == (0, [str(folder), "nothing is wrong"])
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        code, out, _ = trained("doctor", folder)
        assert (code, len(out)) == (1, 4)
        assert out[1].startswith(f"error: files: {file} ")
        assert "checksum" in out[1]
        assert out[2].startswith("  do: put back a copy" if folder == data else "  do: take another checkpoint")


def test_objects_that_cannot_be_pickled_are_named():
    door = threading.Lock()
    for make, policy, subject in ((lambda: door, None, "env's maker"), ("CartPole-v1", lambda obs: door, "policy")):
        text = only(check_pickling(make, policy), "error")
        assert text.startswith(f"the {subject} cannot be pickled")
        assert "variable 'door'" in text


@pytest.mark.parametrize(("mode", "levels"), [("SAME_STEP", []), ("NEXT_STEP", ["warning"]), (None, ["error"])])
def test_the_autoreset_mode_of_a_vector_env_is_checked(mode, levels):
    def make():
        env = named_things.several()
        env.metadata = {**env.metadata, "autoreset_mode": mode and gym.vector.AutoresetMode[mode]}
        return env

    assert [finding.level for finding in check_interface(make)] == levels


def test_env_processes_are_named_for_envs_in_a_process_each():
    env = gym.make_vec("CartPole-v1", num_envs=1, vectorization_mode="async")
    text = only((finding for finding in check_interface(lambda: env) if finding.what == "AsyncVectorEnv"), "note")
    assert "env processes are faster" in text


def test_packages_that_are_too_old_are_found(monkeypatch):
    have = {"torch": "2.4.1+cpu", "ray": "2.1.0", "rich": "99"}

    def version(name):
        if name not in have:
            raise metadata.PackageNotFoundError(name)
        return have[name]

    wanted = ["torch>=2.5", 'ray>=2.40; extra == "ray"', "rich>=13", "absent>=1", 'ruff>=9; extra == "dev"']
    monkeypatch.setattr(machine, "requires", lambda name: wanted)
    monkeypatch.setattr(machine, "version", version)
    assert [(finding.level, finding.what, finding.do) for finding in check_versions()] == [
        ("error", "torch", 'pip install --upgrade "torch>=2.5"'),
        ("warning", "ray", 'pip install --upgrade "ray>=2.40"'),
    ]


@pytest.mark.parametrize(("free", "found"), [(2**20, 1), (2**60, 0)])
def test_too_little_shared_memory_for_ray_is_found(free, found, monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "SHM", tmp_path)
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert [finding.level for finding in check_memory()] == ["warning"] * found


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Set the answer of Ray's cluster."""
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    monkeypatch.setattr(machine.Path, "home", lambda: tmp_path)

    def answers(**answer):
        monkeypatch.setattr(machine, "probe_cluster", lambda environment: answer)

    return answers


def at_ray(environment, *, workers=1, wanted=True) -> list[Finding]:
    return list(check_ray(workers, environment, wanted=wanted))


NOWHERE = "ConnectionError: Could not find any running Ray instance. Please specify"


def test_a_cluster_that_does_not_answer_or_has_too_few_cpus_is_found(cluster):
    address = {"RAY_ADDRESS": "10.0.0.1:6379"}
    cluster(error=NOWHERE)
    assert at_ray({}) == [], "it will be begun"
    assert only(at_ray(address), "error") == NOWHERE
    assert only(at_ray(address, wanted=False), "warning") == NOWHERE
    cluster(cpus=4.0)
    assert at_ray(address, workers=4) == []
    cluster(cpus=1.0)
    assert only(at_ray({}, workers=3), "error") == "3 on 1 CPUs"
    assert only(at_ray({"RAY_ADDRESS": "ray://here:10001"}), "error") == "ray://here:10001"


def test_a_token_that_is_refused_is_named_with_its_place(cluster, tmp_path):
    cluster(error="AuthenticationError", refused=True)
    wrong = "is missing or refused; RAY_AUTH_MODE is"
    assert only(at_ray({}), "error") == f"the token in {tmp_path}/.ray/auth_token {wrong} not set"
    variables = {"RAY_AUTH_TOKEN": "x", "RAY_AUTH_MODE": "token"}
    assert only(at_ray(variables), "error") == f"the token in RAY_AUTH_TOKEN {wrong} token"
