"""Ten planted faults, each found with its advice, and everything else besides."""

from pathlib import Path

import pytest
import sick_envs

from swath.doctor import Effort, Level, Machine, Subject, examine
from swath.doctor.machine import SharedMemory, Threads
from swath.doctor.ray_facts import RayFacts

QUICK = Effort(steps=120, seconds=30.0)
JOINED = RayFacts("2.60.0", "10.0.0.1:6379", token="/home/me/.ray/auth_token", answer="ok")
WELL = Machine(
    Threads(cpus=8, torch=4), SharedMemory(Path("/dev/shm"), 16 * 2**30, 32 * 2**30), JOINED, {"torch": "2.13.0+cpu"}
)


def machine(**facts):
    return Machine(**{**vars(WELL), **facts})


def report(env=sick_envs.Healthy, policy=None, here=WELL, **plans):
    return examine(Subject(env, policy, effort=QUICK, **plans), here)


TEN = {
    "an env that is not picklable": (
        {"env": sick_envs.Locked},
        (Level.WARNING, "pickling of the env", "attribute lock (lock)", "always hand over its id or a function"),
    ),
    "one that leaks memory": (
        {"env": sick_envs.Leaking},
        (Level.ERROR, "memory of the env", "grows by 2", "sick_envs.py:"),
    ),
    "one that ignores seeds": (
        {"env": sick_envs.Seedless},
        (Level.ERROR, "seeds", "another env differs at the first reset", "draw from self.np_random only"),
    ),
    "one with a wrong dtype": (
        {"env": sick_envs.Wide},
        (Level.ERROR, "dtype of 'observation'", "float64", "np.asarray(observation, dtype=float32)"),
    ),
    "NEXT_STEP surprises": (
        {"env": sick_envs.next_step},
        (Level.WARNING, "autoreset", "NEXT_STEP: 26 of 240 rows only reset", "AutoresetMode.SAME_STEP"),
    ),
    "a policy with a wrong output shape": (
        {"policy": sick_envs.logits},
        (Level.ERROR, "answers of the policy", "has shape (8, 2)", "sample from the logits"),
    ),
    "too many threads": (
        {"here": machine(threads=Threads(cpus=2, torch=64))},
        (Level.WARNING, "torch's threads", "64 in this process", "set OMP_NUM_THREADS=2"),
    ),
    "a small /dev/shm": (
        {"here": machine(shared=SharedMemory(Path("/dev/shm"), 64 * 2**20, 32 * 2**30))},
        (Level.WARNING, "/dev/shm", "64 MiB free", "--shm-size=9.3g"),
    ),
    "no Ray": (
        {"here": machine(ray=RayFacts(None)), "backend": "ray"},
        (Level.ERROR, "Ray", "not installed", 'pip install "swath[ray]"'),
    ),
    "a stale token": (
        {
            "here": machine(
                ray=RayFacts("2.60.0", "10.0.0.1:6379", "token", "/home/me/.ray/auth_token", answer="refused")
            ),
            "backend": "ray",
        },
        (Level.ERROR, "Ray's token", "refused by the cluster at 10.0.0.1:6379", "run `ray get-auth-token` on its head"),
    ),
}


@pytest.mark.parametrize("fault", TEN)
def test_a_planted_fault_is_the_only_one_found_and_its_advice_is_given(fault):
    given, (level, what, value, advice) = TEN[fault]
    (finding,) = report(**given).findings
    assert (finding.level, finding.what) == (level, what)
    assert value in finding.value
    assert advice in finding.next_move


@pytest.mark.parametrize("env", [sick_envs.Healthy, sick_envs.same_step, sick_envs.disabled, sick_envs.Healthy()])
def test_nothing_is_found_where_all_is_well(env):
    found = report(env, sick_envs.acts)
    assert found.findings == []
    assert found.left_out == []
    assert {"env_frames_per_second", "collector_frames_per_second", "policy_share"} <= found.figures.keys()


MORE = {
    "an env that is handed over and cannot be copied": (
        sick_envs.Locked(),
        (Level.ERROR, "pickling of the env", "attribute lock (lock)"),
    ),
    "an env that remembers earlier episodes": (
        sick_envs.Remembering,
        (Level.WARNING, "seeds", "the same env, used again differs at the first reset"),
    ),
    "a wrong shape": (sick_envs.Flat, (Level.ERROR, "shape of 'observation'", "shape (1,)")),
    "no numbers": (sick_envs.Undefined, (Level.ERROR, "finiteness of 'observation'", "NaN")),
    "values beyond their bounds": (sick_envs.Beyond, (Level.WARNING, "bounds of 'observation'", "2 at [1]")),
    "four values": (sick_envs.Old, (Level.ERROR, "what step returns", "a tuple of 4")),
    "a close that raises": (sick_envs.Stuck, (Level.ERROR, "env.close", "OSError: the door is stuck")),
    "an end of the process": (sick_envs.Leaving, (Level.ERROR, "env.step", "SystemExit: enough")),
    "a reward in an array": (sick_envs.Rewarding, (Level.ERROR, "reward", "array([1.])")),
    "an env that raises": (sick_envs.Raising, (Level.ERROR, "env.step", "ZeroDivisionError: by nothing")),
    "no end": (sick_envs.Endless, (Level.WARNING, "ends of episodes", "none in 120 steps, and no limit")),
    "a space that is not served": (sick_envs.Texting, (Level.ERROR, "observation_space", "Text(1, 5")),
    "a single env that resets itself": (sick_envs.Unsettled, (Level.ERROR, "autoreset", "info has 'final_obs'")),
    "a mode that is not what it does": (sick_envs.lying, (Level.ERROR, "autoreset", "resets in the same step")),
    "a mode that is not said": (sick_envs.silent, (Level.ERROR, "autoreset", "None")),
    "an env that cannot be built": (sick_envs.unbuildable, (Level.ERROR, "building the env", "level1.map")),
}


@pytest.mark.parametrize("fault", MORE)
def test_other_faults_of_envs_are_found_too(fault):
    env, (level, what, value) = MORE[fault]
    (finding,) = report(env).findings
    assert (finding.level, finding.what) == (level, what)
    assert value in finding.value
    assert finding.next_move


ADVICE = {
    "four values": (sick_envs.Old, "for done, terminated where the episode is over", "in step of sick_envs.Old ("),
    "an observation alone": (sick_envs.Bare, "return observation, info: {}", "in reset of sick_envs.Bare ("),
    "no seed": (sick_envs.Narrow, "let reset of sick_envs.Narrow (", "take these parameters"),
    "four values below a wrapper": (sick_envs.checked, "look at what step of sick_envs.Old (", "returns"),
    "an end of the process": (sick_envs.Leaving, "mend it; the line is ", "sick_envs.py:"),
    "a close that raises": (sick_envs.Stuck, "mend it; the line is ", "sick_envs.py:"),
}


@pytest.mark.parametrize("fault", ADVICE)
def test_advice_names_the_user_s_method_and_where_it_is(fault):
    env, *advice = ADVICE[fault]
    (finding,) = report(env).findings
    assert all(words in finding.next_move for words in advice)
    assert "sick_envs.py:" in finding.next_move


def test_what_makes_no_sense_after_an_error_is_left_out_and_named():
    found = report(sick_envs.Raising, sick_envs.acts)
    assert found.failed
    assert found.looked_at == ["interface", "threads", "shared memory", "Ray", "versions"]
    assert {"seeds", "memory", "policy", "speed"} <= set(found.left_out)


@pytest.mark.parametrize("env", [sick_envs.Healthy, sick_envs.Raising])
def test_a_policy_that_nobody_gave_is_neither_looked_at_nor_left_out(env):
    found = report(env)
    assert not {"policy", "policy's pickling"} & {*found.looked_at, *found.left_out}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of spaces, and that EnvPool cannot be seeded
def test_an_env_of_another_interface_is_looked_at_in_use_only():
    envpool = pytest.importorskip("envpool")
    found = report(lambda: envpool.make_gymnasium("CartPole-v1", num_envs=2), sick_envs.acts)
    assert [(finding.level, finding.what) for finding in found.findings] == [(Level.NOTE, "the env's interface")]
    assert found.left_out == ["autoreset", "seeds", "pickling", "memory"]
    assert "collecting" in found.looked_at
    figures = {"collector_envs", "collector_frames_per_second", "policy_frames_per_second", "policy_share"}
    assert set(found.figures) == figures
    assert found.figures["collector_envs"] == 2


def test_a_look_without_time_is_a_short_one():
    found = examine(Subject(sick_envs.Healthy, sick_envs.acts, effort=Effort(1000, 0.0)), WELL)
    assert (found.findings, found.left_out) == ([], [])
    assert found.figures["policy_frames_per_second"] > 0


def test_warnings_do_not_fail():
    assert not report(sick_envs.next_step).failed


def test_the_report_is_plain_values():
    plain = report(sick_envs.Wide).to_dict()
    (finding,) = plain["findings"]
    assert finding["level"] == "error"
    assert set(finding) == {"level", "what", "value", "wanted", "next_move"}


def test_an_env_that_raises_after_a_while_is_told_of_by_every_look_that_meets_it():
    found = report(sick_envs.Tiring())
    assert found.looked_at[:4] == ["interface", "collecting", "autoreset", "seeds"]
    assert {finding.what for finding in found.findings} == {"env.step"}
    assert all("ZeroDivisionError: by nothing" in finding.value for finding in found.findings)


def test_more_workers_than_cpus_is_said():
    (finding,) = report(workers=9).findings
    assert (finding.level, finding.what, finding.value) == (Level.WARNING, "workers", "9 on this machine")
    assert report(workers=9, backend="ray").findings == []


def test_a_space_that_is_missing_is_told_with_where_to_set_it():
    class Spaceless(sick_envs.Healthy):
        action_space = None

    (finding,) = [finding for finding in report(Spaceless).findings if finding.what == "action_space"]
    assert (finding.level, finding.value) == (Level.ERROR, "none")
    assert finding.next_move == "set self.action_space in its __init__: it says what actions of Spaceless are"
