"""Checks by themselves, given what an env or a policy did."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import sick_envs
from gymnasium.vector import AutoresetMode

from swath.doctor.env_api import findings_of
from swath.doctor.env_autoreset import Row, batched
from swath.doctor.env_pickling import LARGE, recipe
from swath.doctor.env_speed import measure_pace, steps_of_a_batch
from swath.doctor.finding import Level
from swath.doctor.machine import Threads
from swath.doctor.misfits import misfits
from swath.doctor.subject import Effort, Subject
from swath.doctor.threads import check_threads
from swath.doctor.use import beyond, check_use
from swath.doctor.walk import Moment, walk

OBSERVATION = np.zeros(2, np.float32)


def rows(*told):
    """Rows of two envs: where an episode is over, the rewards, whether last observations are kept."""
    return [Row(np.array(over, bool), np.array(reward, float), kept) for over, reward, kept in told]


END = ([True, False], [1, 1], False)
KEPT = ([True, False], [1, 1], True)


@pytest.mark.parametrize(
    ("mode", "told", "said"),
    [
        (AutoresetMode.NEXT_STEP, [END, ([True, False], [0, 1], False)], "the step after an end is an end, too"),
        (AutoresetMode.NEXT_STEP, [END, ([False, False], [3, 1], False)], "the step after an end has the reward 3"),
        (AutoresetMode.NEXT_STEP, [KEPT, ([False, False], [0, 1], False)], "it resets in the same step"),
        (AutoresetMode.NEXT_STEP, [END, ([False, False], [0, 1], False)], "NEXT_STEP: 1 of 4 rows only reset"),
        (AutoresetMode.SAME_STEP, [END], "info has no 'final_obs' where an episode ends"),
    ],
)
def test_what_a_vector_env_does_at_ends_is_told(mode, told, said):
    (finding,) = batched(SimpleNamespace(num_envs=2), mode, rows(*told))
    assert finding.what == "autoreset"
    assert said in finding.value


@pytest.mark.parametrize(
    ("mode", "way"),
    [
        ("sync", "make it so: gymnasium.make_vec("),
        ("vector_entry_point", "change what its class does, if it is yours"),
    ],
)
def test_another_mode_is_advised_in_a_way_that_the_env_has(mode, way):
    env = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode=mode)
    (finding,) = batched(env, AutoresetMode.NEXT_STEP, rows(END, ([False, False], [0, 1], False)))
    env.close()
    assert finding.next_move.startswith(way)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_env_without_ends_tells_nothing(mode):
    assert list(batched(SimpleNamespace(num_envs=2), mode, rows(([False, False], [1, 1], False)))) == []


def test_a_vector_env_that_does_same_step_or_leaves_resets_to_others_is_well():
    assert list(batched(SimpleNamespace(num_envs=2), AutoresetMode.SAME_STEP, rows(KEPT))) == []
    assert list(batched(SimpleNamespace(num_envs=2), AutoresetMode.DISABLED, rows(END))) == []


@pytest.mark.parametrize(
    ("answer", "what", "value"),
    [
        ((OBSERVATION, float("nan"), False, False, {}), "reward", "nan"),
        ((OBSERVATION, "much", False, False, {}), "reward", "'much'"),
        ((OBSERVATION, 1.0, 0, False, {}), "terminated", "0"),
        ((OBSERVATION, 1.0, False, np.zeros(1, bool), {}), "truncated", "array([False])"),
        ((OBSERVATION, 1.0, False, False, None), "info", "None"),
    ],
)
def test_each_part_of_what_step_returns_is_looked_at(answer, what, value):
    (finding,) = findings_of(Moment("step", answer, 0.0), sick_envs.Healthy())
    assert (finding.level, finding.what, finding.value) == (Level.ERROR, what, value)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (OBSERVATION, "ndarray of shape (2,)"),
        ((OBSERVATION, {}, 1), "a tuple of 3: (ndarray of shape (2,), a dict with [], 1)"),
    ],
)
def test_what_reset_returns_is_looked_at(answer, value):
    (finding,) = findings_of(Moment("reset", answer, 0.0), sick_envs.Healthy())
    assert (finding.what, finding.value) == ("what reset returns", value)


NESTED = gym.spaces.Dict(place=gym.spaces.Discrete(3), view=gym.spaces.Tuple([gym.spaces.Box(0, 1, (1,), np.float32)]))
VIEW = (np.zeros(1, np.float32),)


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ({"place": 2, "view": VIEW}, []),
        ({"place": np.int64(2), "view": VIEW}, []),
        ({"place": 3, "view": VIEW}, ["bounds"]),
        ({"place": 1.0, "view": VIEW}, ["dtype"]),
        ({"place": 1, "view": ([0.0],)}, ["dtype"]),
        ({"view": VIEW}, ["missing"]),
        ({"place": 1, "view": ()}, ["missing"]),
        (None, ["missing", "missing"]),
    ],
)
def test_every_entry_of_an_observation_is_held_against_its_space(value, kinds):
    assert [misfit.kind for misfit in misfits(value, NESTED)] == kinds


@pytest.mark.parametrize(
    ("actions", "found"),
    [
        ([[0.0], [1.0]], []),
        ([[0.0], [1.5]], [(Level.WARNING, "50% of the numbers are outside")]),
        ([[0.0], [np.nan]], [(Level.ERROR, "NaN")]),
    ],
)
def test_actions_outside_their_space_are_told(actions, found):
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    told = [(finding.level, finding.value) for finding in beyond(np.array(actions), space)]
    assert [level for level, _ in told] == [level for level, _ in found]
    assert all(value.startswith(part) for (_, value), (_, part) in zip(told, found, strict=True))


def test_what_is_large_costs_every_worker():
    data = bytes(LARGE + 1)
    (finding,) = recipe("what builds the env", lambda: data)
    assert (finding.level, finding.value) == (Level.WARNING, "takes 16 MiB with all that it refers to")
    assert list(recipe("what builds the env", lambda: None)) == []


@pytest.mark.parametrize(("threads", "found"), [(3, 1), (2, 0)])
def test_one_thread_more_than_cpus_is_too_many(threads, found):
    assert len(list(check_threads(Subject("CartPole-v1"), Threads(2, threads)))) == found


def test_a_walk_leaves_the_random_state_of_the_env_s_spaces_alone():
    env = sick_envs.Healthy()
    env.action_space = gym.spaces.Discrete(1000, seed=1)
    list(walk(env, Effort(5, 9.0), seed=2))
    assert env.action_space.sample() == gym.spaces.Discrete(1000, seed=1).sample()


def test_a_walk_ends_when_its_time_is_over():
    assert [moment.call for moment in walk(sick_envs.Healthy(), Effort(100, 0.0), 0)] == ["reset", "step"]


def test_envs_that_were_built_are_closed_and_the_user_s_stay_open():
    closed = []

    class Closing(sick_envs.Healthy):
        def close(self):
            closed.append(self)

    mine = Subject(Closing())
    mine.done_with(mine.make())
    assert closed == []
    theirs = Subject(Closing)
    theirs.done_with(theirs.make())
    assert len(closed) == 1


class Slow(sick_envs.Healthy):
    """Takes its time, on a clock of its own."""

    clock = 0.0

    def reset(self, *, seed=None, options=None):
        type(self).clock += 1.0
        return super().reset(seed=seed)

    def step(self, action):
        type(self).clock += 0.0625
        return super().step(action)


@pytest.mark.parametrize(("steps", "typical"), [(8 * 5, 1.0), (8 * 3, 0.0)])
def test_resets_are_timed_apart_from_steps_and_one_that_was_held_up_says_nothing(steps, typical, monkeypatch):
    monkeypatch.setattr("swath.doctor.walk.time", SimpleNamespace(perf_counter=lambda: Slow.clock, monotonic=lambda: 0))
    subject = Subject(Slow, envs=1, effort=Effort(steps, 1.0))
    pace = measure_pace(subject)
    resets = steps // 8 + 1
    assert pace.reset_seconds == typical
    assert pace.resetting == resets / (resets + steps / 16)
    assert pace.env == steps / (resets + steps / 16)


@pytest.mark.parametrize(("rate", "steps"), [(None, 64), (1e5, 64), (16.0, 10), (0.1, 1)])
def test_a_slow_env_is_timed_in_short_batches(rate, steps):
    assert steps_of_a_batch(rate, envs=8) == steps


@pytest.mark.filterwarnings("error")
def test_batches_are_shared_evenly_by_the_envs_of_a_vector_env():
    def several():
        return gym.vector.SyncVectorEnv([sick_envs.Healthy] * 3, autoreset_mode=AutoresetMode.SAME_STEP)

    subject = Subject(several, effort=Effort(4, 0.0))
    assert list(check_use(subject)) == []
    assert measure_pace(subject).envs == 3


@pytest.mark.parametrize(("env", "envs"), [(sick_envs.Healthy, 3), (sick_envs.Healthy(), 1), (sick_envs.same_step, 2)])
def test_a_pace_says_how_many_envs_were_stepped_together(env, envs):
    assert measure_pace(Subject(env, envs=3, effort=Effort(4, 0.0))).figures()["collector_envs"] == envs
