"""What raises while several agents act: whose episode ends, what is still handed out, and how it goes on."""

import numpy as np
import pytest
from rw_toys import Agents, Troupe

from swath.rollout_workers import DefaultCallbacks


class Notes(DefaultCallbacks):
    def __init__(self):
        self.ends = []

    def on_episode_end(self, *, episode, env_index, **kwargs):
        self.ends.append((env_index, episode))


BROKE = RuntimeError("broke")
MISSHAPEN = {0: np.zeros(1, np.float32), 1: np.zeros(3, np.float32)}
WAYS = {
    "step": (BROKE, None, RuntimeError, "broke"),
    "shape": (0, MISSHAPEN, ValueError, "returned an observation of shape"),
    "unknown": (0, {9: np.zeros(1, np.float32)}, KeyError, "gave 'nobody' for agent 9; there are"),
}


def by_agent(agent, episode):
    return "default_policy" if agent in (0, 1) else "nobody"


def troupe_of(place, value=None, **config):
    """Three envs; the second raises, or returns this value in this place, in the third step of its first episode."""

    def go_wrong(env, answer):
        if env is troupe.made[1] and (env.episode, env.at) == (0, 3):
            if isinstance(place, Exception):
                raise place
            answer[place] = value

    config = {"rollout_fragment_length": 4, **config}
    troupe = Troupe(lambda: Agents(2, 6, hook=go_wrong), 3, mapping=by_agent, callbacks=Notes(), **config)
    return troupe


def rows(batch, env_rows=8):
    return [batch["obs"][i : i + env_rows, 0].astype(int).tolist() for i in range(0, batch.count, env_rows)]


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_breaks_is_raised_and_the_next_call_resumes_with_all_others_untouched(way):
    place, value, error, text = WAYS[way]
    troupe = troupe_of(place, value)
    with pytest.raises(error) as raised:
        troupe.sample()
    assert text in str(raised.value)
    note = "raised by sub-env 1 (last seed None) in step 2 of its episode, counted from 0"
    assert note in raised.value.__notes__
    batch = troupe.sample()
    assert (batch.count, batch.env_steps()) == (24, 12)
    plain, broken = [0, 1, 2, 3] * 2, [0, 1] * 4
    assert rows(batch) == [plain, broken, plain]
    assert batch["truncateds"][8:16].tolist() == [False, True, False, True, False, False, False, False]
    assert troupe.sample().count == 24
    assert [env.episode for env in troupe.made] == [1, 1, 1]
    faulty, *others = troupe.get_metrics()
    assert (faulty.episode_faulty, faulty.env_index) == (True, 1)
    assert text.split(";")[0] in faulty.error
    assert [(told.episode_faulty, told.episode_length) for told in others] == [(False, 6)] * 3
    env, ended = troupe.callbacks.ends[0]
    assert (env, isinstance(ended, error)) == (1, True)


def test_an_episode_in_which_nobody_acts_breaks_its_env():
    def hide(env, answer):
        answer[0] = {} if env.episode == 1 else answer[0]

    troupe = Troupe(lambda: Agents(length=3, hook=hide), rollout_fragment_length=3)
    troupe.sample()
    with pytest.raises(ValueError, match="ended after 3 steps in which no agent was observed to act"):
        troupe.sample()
    assert troupe.sample().env_steps() == 3
