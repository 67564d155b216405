"""What is known of a machine, from files and variables."""

import socket
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from swath.doctor.env_speed import Pace, check_pace
from swath.doctor.finding import Level
from swath.doctor.growth import RESIDENT_NOISE, TRACED_NOISE, Growth, measure
from swath.doctor.machine import Machine, SharedMemory, Threads, cpus_allowed, name_of, shared_memory
from swath.doctor.memory import check_memory
from swath.doctor.ray_cluster import check_ray
from swath.doctor.ray_facts import RayFacts, ask, cluster_meant, mode_meant, ray_here, tokens
from swath.doctor.subject import Effort, Subject
from swath.doctor.versions import check_versions, number_of


class Usage(NamedTuple):
    total: int
    used: int
    free: int


ON_RAY = Subject("CartPole-v1", backend="ray")
INSTALLED = RayFacts("2.60.0")
ROOMY = Threads(cpus=64, torch=1)


@pytest.mark.parametrize("part", [0.0, 0.9])
def test_shared_memory_is_small_where_less_is_free_than_ray_takes(part, tmp_path):
    def usage(path):
        assert path == tmp_path
        return Usage(0, 0, int(part * shared_memory(tmp_path, lambda _: Usage(0, 0, 0)).memory))

    assert len(list(check_memory(ON_RAY, shared_memory(tmp_path, usage), INSTALLED))) == (part == 0.0)


@pytest.mark.parametrize(
    ("backend", "ray", "found"),
    [(None, INSTALLED, 1), ("ray", INSTALLED, 1), ("process", INSTALLED, 0), (None, RayFacts(None), 0)],
)
def test_shared_memory_matters_only_to_those_who_may_have_workers_on_ray(backend, ray, found):
    small = SharedMemory(Path("/dev/shm"), free=64 * 2**20, memory=2**34)
    assert len(list(check_memory(Subject("CartPole-v1", backend=backend), small, ray))) == found


def test_a_system_without_shared_memory_of_that_name_is_well(tmp_path):
    assert shared_memory(tmp_path / "shm") is None
    assert list(check_memory(ON_RAY, None, INSTALLED)) == []


@pytest.mark.parametrize(("text", "cpus"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)])
def test_a_container_s_quota_counts_as_cpus(text, cpus, tmp_path):
    free = cpus_allowed(tmp_path)
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert cpus_allowed(tmp_path) == (cpus or free)


@pytest.mark.parametrize(("quota", "cpus"), [("100000", 1), ("-1", None)])
def test_a_quota_of_the_older_kind_counts_too(quota, cpus, tmp_path):
    free = cpus_allowed(tmp_path)
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cpus_allowed(tmp_path) == (cpus or free)


def test_ray_takes_its_token_from_three_places_in_this_order(tmp_path):
    home, file = tmp_path / "home", tmp_path / "token"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("home\n")
    file.write_text("file")
    names = ["RAY_AUTH_TOKEN", f"RAY_AUTH_TOKEN_PATH={file}", str(home / ".ray" / "auth_token")]
    for there in product((True, False), repeat=2):
        given = {"RAY_AUTH_TOKEN": "variable", "RAY_AUTH_TOKEN_PATH": str(file)}
        environment = {name: value for (name, value), is_there in zip(given.items(), there, strict=True) if is_there}
        expected = [name for name, is_there in zip(names, (*there, True), strict=True) if is_there]
        assert tokens(environment, home) == (expected[0], (*expected, "")[1])
    assert tokens({}, tmp_path) == ("", "")
    assert tokens({"RAY_AUTH_TOKEN": "home"}, home) == ("RAY_AUTH_TOKEN", "")


def test_the_cluster_is_the_variable_s_or_the_one_that_was_started_here(tmp_path):
    here = {"RAY_TMPDIR": str(tmp_path)}
    assert cluster_meant(here) is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert cluster_meant(here) == "10.0.0.1:6379"
    assert cluster_meant({**here, "RAY_ADDRESS": "10.0.0.2:6379"}) == "10.0.0.2:6379"
    assert cluster_meant({**here, "RAY_ADDRESS": "local"}) is None


def test_ray_shows_its_token_unasked_only_to_a_cluster_that_it_has_found_itself():
    assert mode_meant({}, "/me/.ray/auth_token") == "token"
    assert mode_meant({"RAY_ADDRESS": "auto"}, "/me/.ray/auth_token") == "token"
    assert mode_meant({}, "") == ""
    assert mode_meant({"RAY_ADDRESS": "10.0.0.1:6379"}, "/me/.ray/auth_token") == ""
    assert mode_meant({"RAY_AUTH_MODE": "disabled"}, "/me/.ray/auth_token") == "disabled"


def test_a_client_s_address_is_not_asked(tmp_path):
    pytest.importorskip("ray")
    facts = ray_here({"RAY_ADDRESS": "ray://head:10001"}, tmp_path)
    assert facts.answer is None
    (finding,) = check_ray(ON_RAY, facts, ROOMY)
    assert finding.what == "RAY_ADDRESS"
    assert "`ray job submit`" in finding.next_move


def test_where_nothing_listens_ray_is_not_even_asked(monkeypatch):
    monkeypatch.setattr("subprocess.run", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "127.0.0.1:{1}".format(*server.getsockname())
    told = ask(address, "")
    assert told["answer"] == "none"
    assert "refused" in told["said"]


def test_a_cluster_that_says_nothing_is_not_waited_for(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr("swath.doctor.ray_facts.ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert ask("127.0.0.1:{1}".format(*server.getsockname()), "") == {
            "answer": "none",
            "said": "no answer in 0.2 s",
        }


RAY = {
    "a stale token in the variable, a better one in the file": (
        RayFacts("2.60.0", "a:1", "token", "RAY_AUTH_TOKEN", "/me/.ray/auth_token", "refused"),
        (Level.ERROR, "the one in RAY_AUTH_TOKEN is refused", "unset RAY_AUTH_TOKEN to use it"),
    ),
    "a token that is not shown": (
        RayFacts("2.60.0", "a:1", token="/me/.ray/auth_token", answer="refused"),
        (Level.ERROR, "the one in /me/.ray/auth_token is not shown to the cluster at a:1", "set RAY_AUTH_MODE=token"),
    ),
    "no token where one is wanted": (
        RayFacts("2.60.0", "a:1", answer="refused"),
        (Level.ERROR, "none, and the cluster at a:1 wants one", "ray get-auth-token"),
    ),
    "no token where one is asked for": (
        RayFacts("2.60.0", "a:1", mode="token", answer="ok"),
        (Level.ERROR, "none, although RAY_AUTH_MODE=token", "ray get-auth-token"),
    ),
    "a cluster that is gone": (
        RayFacts("2.60.0", "a:1", answer="none", said="no answer in 30 s"),
        (Level.ERROR, "a:1 does not let us in: no answer in 30 s", "unset RAY_ADDRESS"),
    ),
}


@pytest.mark.parametrize("fault", RAY)
def test_what_is_wrong_with_a_cluster_is_said(fault):
    facts, (level, value, advice) = RAY[fault]
    (finding,) = check_ray(ON_RAY, facts, ROOMY)
    assert finding.level is level
    assert value in finding.value
    assert advice in finding.next_move


@pytest.mark.parametrize(
    ("workers", "facts", "level"),
    [
        (2, RayFacts("2.60.0"), None),
        (3, RayFacts("2.60.0"), Level.ERROR),
        (3, RayFacts("2.60.0", "a:1", answer="ok", cpus=8.0), None),
        (9, RayFacts("2.60.0", "a:1", answer="ok", cpus=8.0), Level.WARNING),
        (9, RayFacts("2.60.0", "ray://a:1"), None),
    ],
)
def test_more_workers_than_cpus_on_ray_are_told_of(workers, facts, level):
    found = check_ray(Subject("CartPole-v1", workers=workers, backend="ray"), facts, Threads(cpus=2, torch=1))
    room = [finding for finding in found if finding.what == "workers"]
    assert [finding.level for finding in room] == ([level] if level else [])
    assert all(finding.next_move.startswith(f"use {8 if facts.cpus else 2}, with more envs") for finding in room)


def test_workers_elsewhere_need_no_room_on_ray():
    assert not list(check_ray(Subject("CartPole-v1", workers=9), RayFacts("2.60.0"), Threads(cpus=2, torch=1)))


def test_ray_that_is_not_asked_for_is_only_noted():
    (finding,) = check_ray(Subject("CartPole-v1"), RayFacts(None), ROOMY)
    assert finding.level is Level.NOTE


def test_a_package_that_is_too_old_is_named_with_the_way_out():
    required = ("torch>=2.5", 'ray>=2.40; extra == "ray"', 'swath[ray]; extra == "all"', "numpy>=1.26")
    (finding,) = check_versions({"torch": "2.4.1+cpu", "ray": "2.60.0", "numpy": "2.0"}, required)
    assert (finding.what, finding.value) == ("torch", "2.4.1+cpu")
    assert finding.next_move == 'pip install --upgrade "torch>=2.5"'
    assert [name_of(one) for one in required] == ["torch", "ray", "swath", "numpy"]
    assert number_of("2.10") > number_of("2.9.3")


def test_an_old_package_of_an_extra_is_a_warning_and_a_tool_of_ours_nothing():
    required = ('pyarrow>=14; extra == "datasets"', "mypy>=1.11; extra == 'dev'", 'mkdocs-material>=9; extra == "docs"')
    (finding,) = check_versions({"pyarrow": "12.0.1", "mypy": "1.5", "mkdocs-material": "8.0"}, required)
    assert (finding.level, finding.what) == (Level.WARNING, "pyarrow")
    assert finding.wanted == "14 or newer, for swath[datasets]"


@pytest.mark.parametrize(
    ("traced", "resident", "per_window"),
    [
        ([20 * TRACED_NOISE, 2 * TRACED_NOISE, 3 * TRACED_NOISE], [], 3 * TRACED_NOISE),
        ([20 * TRACED_NOISE, 2 * TRACED_NOISE, 0], [], 0),
        ([0, 0, 0], [2 * RESIDENT_NOISE] * 3, 2 * RESIDENT_NOISE),
        ([0, 0, 0], [2 * RESIDENT_NOISE, RESIDENT_NOISE, 9 * RESIDENT_NOISE], 0),
    ],
)
def test_a_leak_is_growth_in_every_window(traced, resident, per_window):
    assert Growth(tuple(traced), tuple(resident)).per_window == per_window


def test_the_line_that_leaks_is_named_and_a_cache_that_fills_is_no_leak():
    kept, cache = [], {}
    leak = measure(lambda: kept.append(bytearray(3 * TRACED_NOISE)))
    assert leak.per_window >= 3 * TRACED_NOISE
    assert leak.where.startswith("tests/doctor/test_doctor_facts.py:")
    filled = measure(lambda: cache.setdefault(0, bytearray(3 * TRACED_NOISE)))
    assert filled.per_window == 0
    assert filled.traced[0] < TRACED_NOISE


def test_resets_that_take_most_of_the_time_are_said():
    (finding,) = check_pace(Pace(100.0, 0.8, 0.02, 8, 90.0))
    assert (finding.what, finding.value) == ("resets", "take 80% of the env's time, 20 ms each")
    assert list(check_pace(Pace(100.0, 0.2, 0.02, 8, 90.0))) == []
    assert list(check_pace(Pace(1e5, 0.8, 1e-5, 8, 90.0))) == []


def test_figures_leave_out_what_is_not_known():
    assert Pace(None, 0.0, 0.0, 8, 200.0).figures() == {"collector_envs": 8, "collector_frames_per_second": 200.0}
    assert Pace(100.0, 0.2, 0.02, 8, 200.0, 50.0).figures()["policy_share"] == 0.75


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"seconds": -1}])
def test_effort_is_checked_where_it_is_built(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Effort(**wrong)


def test_this_machine_can_be_looked_at(monkeypatch):
    monkeypatch.setattr("swath.doctor.machine.ray_here", lambda: RayFacts(None))
    machine = Machine.here()
    assert machine.threads.cpus >= 1
    assert list(check_versions(machine.versions, machine.required)) == []
