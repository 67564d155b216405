"""Looks in a process of their own: what hangs or crashes is found, and everything else is looked at all the same."""

from functools import partial
from pathlib import Path

import gymnasium as gym
import pytest
import sick_envs

from swath.doctor import Apart, Effort, Level, Machine, Subject, apart, examine
from swath.doctor.machine import Threads
from swath.doctor.output import MOST_BYTES, Output, Printed
from swath.doctor.ray_facts import RayFacts
from swath.doctor.stacks import place_in
from swath.doctor.walk import walk
from swath.doctor.watchdog import Watchdog
from swath.testing.backend.warm import warm_processes  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("warm_processes")

WELL = Machine(Threads(64, 1), None, RayFacts("2.60.0"))
QUICK = Effort(steps=60, seconds=30.0)
SOON = 3.0
FACTS = ["threads", "shared memory", "Ray", "versions"]


def report(env, policy=None, patience=SOON):
    build = partial(Subject, env, policy, effort=QUICK)
    with Apart(build, patience) as looking:
        return examine(Subject("CartPole-v1", policy), WELL, look_at=looking.look)


def test_all_looks_are_made_in_a_process_of_their_own_as_they_are_here():
    found = report(sick_envs.Healthy, sick_envs.acts, patience=60.0)
    here = examine(Subject(sick_envs.Healthy, sick_envs.acts, effort=QUICK), WELL)
    assert (found.findings, found.looked_at, found.left_out) == ([], here.looked_at, [])
    assert found.figures.keys() == here.figures.keys()


HANGING = {
    "step": (sick_envs.Waiting, "env.step", "it is in wait, "),
    "native code": (sick_envs.Dead, "env.reset", "it is in reset, "),
    "close": (sick_envs.Lingering, "env.close", "it is in wait, "),
    "its class": (sick_envs.Unborn, "building the env", "it is in wait, "),
}


@pytest.mark.parametrize("where", HANGING)
def test_an_env_that_hangs_is_told_with_the_call_the_time_and_the_line(where):
    env, what, at = HANGING[where]
    found = report(env)
    (finding,) = found.findings
    assert (finding.level, finding.what) == (Level.ERROR, what)
    assert finding.value.startswith(f"has not come back in 3 s: {at}")
    assert "sick_envs.py:" in finding.value
    assert "--patience 30" in finding.next_move
    assert found.looked_at == ["interface", *FACTS]


def test_an_env_of_gymnasium_s_that_hangs_while_it_is_built_is_told(monkeypatch):
    def build():
        gym.register("Unborn-v0", sick_envs.Unborn)
        return Subject("Unborn-v0")

    with Apart(build, SOON) as looking:
        (finding,) = looking.look("interface").findings
    assert finding.what == "building the env"


def test_looks_after_one_that_hangs_are_made_in_another_process():
    found = report(sick_envs.Shy)
    (finding,) = found.findings
    assert (finding.what, finding.level) == ("the look at pickling", Level.ERROR)
    assert found.left_out == []
    assert found.figures["env_frames_per_second"] > 0


def test_a_policy_that_hangs_is_told_and_only_its_speed_is_not_measured():
    found = report(sick_envs.Healthy, sick_envs.ponders)
    (finding,) = found.findings
    assert finding.what == "the look at policy"
    assert found.left_out == ["speed"]


def test_an_env_that_ends_its_process_is_told():
    (finding,) = report(sick_envs.Crashing).findings
    assert (finding.what, finding.value) == ("the look at interface", "its process ended with exit code 3")


@pytest.mark.parametrize(
    ("env", "policy", "look", "said"),
    [
        (sick_envs.Exiting, None, "interface", "SystemExit: no licence"),
        (sick_envs.Healthy, sick_envs.quits, "policy", "SystemExit: no idea"),
    ],
)
def test_what_means_to_end_the_process_is_told_as_that_with_its_line(env, policy, look, said):
    (finding,) = report(env, policy, patience=60.0).findings
    assert (finding.what, finding.value) == (f"the look at {look}", f"it raised {said}")
    assert "sick_envs.py:" in finding.next_move


@pytest.mark.parametrize("env", [sick_envs.Loud, sick_envs.Ticking])
def test_what_an_env_prints_is_left_out_and_told_in_one_line(env, capfd):
    (finding,) = report(env, patience=60.0).findings
    assert (finding.level, finding.what) == (Level.WARNING, "output of the env")
    assert finding.value == "61 lines in one look, the first 'hello'"
    assert capfd.readouterr().out == ""


def test_a_line_of_greeting_is_not_told(capfd):
    assert report(sick_envs.Greeting, patience=60.0).findings == []
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("env", [sick_envs.Stopped, sick_envs.Unwatched])
def test_a_process_whose_watchdog_is_not_heard_of_is_given_up(env, monkeypatch):
    monkeypatch.setattr(apart, "SPARE_S", 1.0)
    found = report(env)
    (finding,) = found.findings
    assert finding.what == "the look at interface"
    assert finding.value == "has not come back in 3 s, and its process could not say where it is"
    assert found.looked_at == ["interface", *FACTS]


def test_a_process_that_does_not_begin_is_given_up(monkeypatch):
    monkeypatch.setattr(apart, "START_S", 1.0)
    monkeypatch.setattr(apart, "Examiner", sick_envs.waits)
    with pytest.raises(TimeoutError, match="could not say where it is"), Apart(sick_envs.Healthy, SOON):
        pass


def test_an_env_that_closes_its_standard_output_is_looked_at_like_others():
    for env in (sick_envs.Mute, sick_envs.Silenced):
        assert report(env, patience=60.0).findings == []


def test_what_is_printed_is_counted_and_let_go_when_it_is_much(tmp_path):
    output = Output(tmp_path / "output")
    with (tmp_path / "output").open("ab", buffering=0) as file:
        file.write(b"\n first \n")
        output.keep_small()
        assert (tmp_path / "output").stat().st_size == 9
        file.write(b"one more of them\n" * 100_000)
        output.keep_small()
        assert (tmp_path / "output").stat().st_size == 0
        file.write(b"last")
        assert output.taken() == Printed(100_002, "first")
    assert output.taken() == Printed()


def test_what_an_env_prints_without_end_leaves_the_disk_alone(monkeypatch):
    monkeypatch.setattr("swath.doctor.apart.EVERY_S", 0.01)
    emptied, empty = [], Output._empty
    monkeypatch.setattr(Output, "_empty", lambda self: (emptied.append(self._path.stat().st_size), empty(self)))
    (finding,) = report(sick_envs.Talking).findings
    assert finding.value.startswith("has not come back in 3 s: it is in step, ")
    assert len([size for size in emptied if size > MOST_BYTES]) > 1


def test_a_subject_that_cannot_be_built_a_second_time_is_told(tmp_path):
    mark = tmp_path / "built"

    def build():
        if mark.exists():
            raise FileExistsError("built once")
        mark.touch()
        return Subject(sick_envs.Crashing, effort=QUICK)

    with Apart(build, SOON) as looking:
        assert looking.look("interface").findings[0].value == "its process ended with exit code 3"
        (finding,) = looking.look("seeds").findings
    assert (finding.what, finding.value) == ("the look at seeds", "it raised FileExistsError: built once")


def test_what_hangs_while_the_subject_is_built_is_raised_in_one_line():
    with (
        pytest.raises(TimeoutError, match="has not come back in 3 s: it is in wait, ") as late,
        Apart(sick_envs.wait, SOON),
    ):
        pass
    assert "\n" not in str(late.value)


def test_what_building_the_subject_raises_is_raised():
    with pytest.raises(FileNotFoundError, match=r"level1\.map"), Apart(sick_envs.unbuildable):
        pass


@pytest.mark.parametrize("patience", [0, -1.0, float("inf"), "long"])
def test_patience_is_a_time(patience):
    with pytest.raises(ValueError, match="patience="):
        Apart(sick_envs.unbuildable, patience)


def test_a_watched_walk_sets_the_watchdog_anew_and_takes_it_away(monkeypatch, tmp_path):
    now, heard = [0.0], []
    monkeypatch.setattr("swath.doctor.watchdog.time.monotonic", lambda: now[0])
    monkeypatch.setattr("faulthandler.dump_traceback_later", lambda patience, **_: heard.append((now[0], patience)))
    monkeypatch.setattr("faulthandler.cancel_dump_traceback_later", lambda: heard.append("away"))
    with (tmp_path / "stacks").open("w") as file, Watchdog(10.0, file).watched():
        for _ in walk(sick_envs.Healthy(), Effort(4, 1000.0), 0):
            now[0] += 0.15
    assert heard == [(0.0, 10.0), (pytest.approx(0.3), 10.0), (pytest.approx(0.6), 10.0), "away"]


STACKS = f"""Timeout (0:00:03)!
Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Thread 0x00007e (most recent call first):
  File "{Path(pytest.__file__)}", line 5 in inner
  File "/home/me/maze.py", line 18 in step
  File "{Path(gym.__file__)}", line 9 in step
  File "{Path(walk.__code__.co_filename)}", line 80 in _timed
"""


def test_stacks_name_the_call_and_the_user_s_innermost_line():
    at = place_in(STACKS)
    assert (at.caller, at.called, at.function, at.at) == ("_timed", "step", "step", "/home/me/maze.py:18")
    assert place_in("Timeout!") is None
