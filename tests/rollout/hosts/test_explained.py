"""An env that answers with the wrong form is told by call, class, place and answer, and what its API wants."""

import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from swath import Collector
from swath.errors import BadAnswer
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.hosts.gymnasium import RESET, STEP, EnvListHost
from swath.rollout.hosts.vector import vector_host

ROW = np.zeros(2, np.float32)
PAIR = gym.spaces.Dict({name: gym.spaces.Box(-1, 1, (2,), np.float32) for name in "ab"})
ROWS = {"a": ROW, "b": ROW}
SEEN = "ndarray of shape (2,)"


class Answering(gym.Env):
    """Answers what its class says."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    begun, stepped = (ROW, {}), (ROW, 0.0, False, False, {})

    def reset(self, *, seed=None, options=None):
        return self.begun

    def step(self, action):
        return self.stepped


class Unseeded(Answering):
    def reset(self):
        return self.begun


class Idle(Answering):
    def step(self):
        return self.stepped


class Passing(gym.Wrapper):
    """Has nothing of its own."""


class Old(gym.Wrapper):
    def step(self, action):
        return super().step(action)[:4]


class Raising(Answering):
    def step(self, action):
        raise ValueError("no such move")


class Misled(gym.Wrapper):
    """Reads an answer itself."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info


class Lying:
    """Raises whatever it is asked."""

    @property
    def shape(self):
        raise RuntimeError("no shape")

    def __repr__(self):
        raise RuntimeError("no words")


def answering(**answers):
    return type("Answers", (Answering,), {"__module__": __name__, **answers})()


def failure_of(env):
    """What its first reset raises, or else its first step, after those of another env."""
    host = EnvListHost([answering(observation_space=env.observation_space, begun=(seen(env), {})), env])
    try:
        host.reset_all()
    except EnvRaised as raised:
        return {raised.env: raised.cause}[1]
    return dict(host.step([np.zeros(2, np.int64)]).failed)[1]


def seen(env):
    return ROWS if env.observation_space == PAIR else ROW


def subject(call, kind, name=None):
    """How a call of a class is named."""
    code = getattr(kind, call).__code__
    file = code.co_filename
    return f"{call} of {__name__}.{name or kind.__name__} ({file}:{code.co_firstlineno})"


ANSWERS = subject("step", Answering, "Answers")
BEGINS = subject("reset", Answering, "Answers")


@pytest.mark.parametrize(
    ("stepped", "said"),
    [
        ((ROW, 0.0, False, {}), f"{ANSWERS} returned a tuple of 4: ({SEEN}, 0.0, False, a dict with [])"),
        ((ROW, 0.0, False, False, 7, {}), f"{ANSWERS} returned a tuple of 6: ({SEEN}, 0.0, False, False, 7, a dict"),
        (None, f"{ANSWERS} returned None"),
        (ROW, f"{ANSWERS} returned {SEEN}"),
        (np.float32(1.5), f"{ANSWERS} returned np.float32(1.5)"),
        (tuple(range(10**5)), f"{ANSWERS} returned a tuple of 100000: (0, 1, 2, 3, 4, 5, …)"),
        (
            (ROW, "1" * 10**5, False, False, {}),
            f"{ANSWERS}: the env returned the reward '111111111111...1111111111111'",
        ),
        (Lying(), f"{ANSWERS} returned a Lying"),
        ((ROW, Lying(), False, False, {}), f"{ANSWERS}: the env returned the reward <Lying instance at"),
        ((ROW, "1", False, False, {}), f"{ANSWERS}: the env returned the reward '1'; it must be one number"),
        ((ROW, 0.0, "no", False, {}), f"{ANSWERS}: the env returned terminated='no'; it must be True or False"),
    ],
)
def test_a_step_of_the_wrong_form_is_told_with_what_it_returned_and_what_it_should(stepped, said):
    error = failure_of(answering(stepped=stepped))
    assert type(error) is BadAnswer
    assert str(error).startswith(said)
    assert str(error).endswith(f"; {STEP.form}")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("begun", "space", "said"),
    [
        (ROW, Answering.observation_space, SEEN),
        (ROWS, PAIR, "a dict with ['a', 'b']"),
        (None, Answering.observation_space, "None"),
        ((ROW, 0.0, {}), Answering.observation_space, f"a tuple of 3: ({SEEN}, 0.0, a dict with [])"),
    ],
)
def test_a_reset_of_the_wrong_form_is_told_also_where_its_observation_has_two_entries(begun, space, said):
    error = failure_of(answering(begun=begun, observation_space=space))
    assert str(error) == f"{BEGINS} returned {said}; {RESET.form}"


def test_a_method_that_does_not_take_what_the_api_hands_in_is_told_although_other_envs_have_answered():
    error = failure_of(Unseeded())
    assert str(error).startswith(subject("reset", Unseeded) + ": Unseeded.reset() got an unexpected keyword argument")
    assert str(failure_of(Idle())).startswith(subject("step", Idle) + ": Idle.step() takes 1 positional argument")


def test_the_wrapper_that_spoils_the_answer_is_named_below_those_that_pass_it_on():
    error = failure_of(TimeLimit(Passing(Old(TimeLimit(Answering(), 9))), 9))
    assert str(error).startswith(f"{subject('step', Old)} returned a tuple of 4: ")
    error = failure_of(gym.wrappers.OrderEnforcing(Passing(Unseeded())))
    assert str(error).startswith(f"{subject('reset', Unseeded)}: ")


def test_what_a_wrapper_of_gymnasiums_cannot_read_is_told_of_what_it_wraps():
    error = failure_of(Passing(RecordEpisodeStatistics(Passing(answering(stepped=None)))))
    assert str(error).startswith(f"{ANSWERS}: cannot unpack")


@pytest.mark.parametrize(("env", "said"), [(Raising(), "no such move"), (Misled(answering(stepped=None)), "unpack")])
def test_an_error_in_the_users_own_lines_stays_what_it_is(env, said):
    error = failure_of(env)
    assert not isinstance(error, BadAnswer)
    assert said in str(error)


@pytest.mark.parametrize(
    ("observed", "said"),
    [
        (np.zeros(3), "(3,)"),
        (None, "()"),
        ([[1.0], [1.0, 2.0]], "(rows of different lengths)"),
    ],
)
def test_an_observation_of_another_shape_is_told_of_its_env(observed, said):
    said = f"the env returned an observation of shape {said} for 'observation'; its observation space says (2,)"
    odd = answering(stepped=(observed, 0.0, False, False, {}))
    host = EnvListHost([Answering(), odd])
    host.reset_all()
    for moved in (host.step([np.zeros(2, np.int64)]), host.step_one(1, [np.zeros(2, np.int64)])):
        ((env, error),) = moved.failed
        assert (env, type(error), str(error)) == (1, BadAnswer, f"{ANSWERS}: {said}; {STEP.form}")
    with pytest.raises(EnvRaised) as caught:
        EnvListHost([Answering(), answering(begun=(observed, {}))]).reset_all()
    assert (caught.value.env, str(caught.value.cause)) == (1, f"{BEGINS}: {said}; {RESET.form}")


def test_an_observation_without_one_of_its_entries_is_told_of_its_env():
    with pytest.raises(EnvRaised) as caught:
        EnvListHost([answering(observation_space=PAIR, begun=({"a": ROW}, {}))]).reset_all()
    assert type(caught.value.cause) is BadAnswer
    assert re.match(r"reset of .*: no entry 'b'; a gymnasium env has reset", str(caught.value.cause))


def test_a_vector_env_of_the_wrong_form_is_told_likewise():
    class Short(SyncVectorEnv):
        def step(self, actions):
            return super().step(actions)[:4]

    host = vector_host(Short([Answering] * 2, autoreset_mode=AutoresetMode.DISABLED))
    host.reset_all()
    (_, error), _ = host.step([np.zeros(2, np.int64)]).failed
    assert str(error).startswith("step of ")
    assert ".Short (" in str(error)
    assert " returned a tuple of 4: (ndarray of shape (2, 2), " in str(error)
    assert str(error).endswith(
        "; a gymnasium vector env has step(actions) -> observations, rewards, terminations, truncations, infos"
    )


def test_an_answer_is_told_also_where_the_current_folder_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    error = failure_of(answering(stepped=None))
    assert str(error).startswith(f"step of {__name__}.Answers ({__file__}:")


def test_actions_that_are_none_are_not_blamed_on_the_env():
    several = vector_host(SyncVectorEnv([Answering] * 2, autoreset_mode=AutoresetMode.DISABLED))
    for host in (EnvListHost([Answering(), Answering()]), several):
        host.reset_all()
        with pytest.raises(IndexError):
            host.step([])


@pytest.mark.parametrize("place", ["direct", "thread", "process"])
def test_a_collector_raises_it_wherever_the_env_is_and_says_which_one(place):
    workers = {} if place == "direct" else {"backend": place, "num_collectors": 1}
    with (
        Collector(lambda: answering(stepped=(ROW, 0.0, False, {})), frames_per_batch=4, total_frames=8, **workers) as c,
        pytest.raises(BadAnswer, match=r"returned a tuple of 4: .*; a gymnasium env has step\(action\) ->") as caught,
    ):
        next(iter(c))
    assert any(note.startswith("raised by env 0 ") for note in caught.value.__notes__)
