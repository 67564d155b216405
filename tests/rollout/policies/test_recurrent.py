"""Policies with a memory: what they read back, and where it begins anew."""

import numpy as np
import pytest
import torch
from policy_toys import observed, spec_of
from tensordict.nn import TensorDictModule
from torch import nn

from swath.rollout.policies.binding import RandomActions, bind
from swath.rollout.policies.calling import Binding
from swath.rollout.random_policy import RandomPolicy


class Counter(nn.Module):
    """Counts its calls per env in a state `[*B, 1]`; the action is 0."""

    in_keys = ["observation", "h", "is_init"]
    out_keys = ["action", ("next", "h")]

    def __init__(self):
        super().__init__()
        self.told = []

    def forward(self, observation, h, is_init):
        self.told.append(is_init.clone())
        h = observation.new_zeros((*observation.shape[:-1], 1)) if h is None else h
        return torch.zeros(observation.shape[:-1], dtype=torch.int64), h + 1


class InPlace(Counter):
    """The same, in one buffer of its own that is also what it is given next."""

    def forward(self, observation, h, is_init):
        action, following = super().forward(observation, h, is_init)
        if not hasattr(self, "kept"):
            self.kept = following.clone()
        if h is not None:
            h.add_(1000)
        self.kept.copy_(following)
        return action, self.kept


def as_module():
    counter = Counter()
    return TensorDictModule(counter, in_keys=counter.in_keys, out_keys=counter.out_keys)


FORMS = {"a module": Counter, "one that reuses its memory": InPlace, "a tensordict module": as_module}


class Played:
    """A policy bound to three envs, and its outputs by key."""

    def __init__(self, policy, spec=None):
        self.spec = spec or spec_of()
        self.policy = bind(policy, self.spec, observed(self.spec), Binding())

    def step(self):
        with torch.no_grad():
            values = self.policy(observed(self.spec, 1))
        return {key: np.array(value) for key, value in zip(self.policy.keys, values, strict=True)}


@pytest.fixture(params=list(FORMS))
def played(request):
    return Played(FORMS[request.param]())


def test_what_is_written_under_next_is_read_in_the_next_step(played):
    assert played.policy.keys == ("action", ("next", "h"), "h", "is_init")
    steps = [played.step() for _ in range(4)]
    assert [step["h"][:, 0].tolist() for step in steps] == [[0] * 3, [1] * 3, [2] * 3, [3] * 3]
    assert [step["next", "h"][:, 0].tolist() for step in steps] == [[1] * 3, [2] * 3, [3] * 3, [4] * 3]


def test_the_state_is_zero_and_is_init_set_where_an_episode_begins(played):
    played.step(), played.step()
    played.policy.begin([1])
    step = played.step()
    assert step["h"][:, 0].tolist() == [2, 0, 2]
    assert step["is_init"][:, 0].tolist() == [False, True, False]
    assert played.step()["is_init"][:, 0].tolist() == [False] * 3


def test_rewinding_forgets_the_last_call(played):
    played.step(), played.step()
    played.policy.rewind()
    played.policy.begin([2])
    step = played.step()
    assert step["h"][:, 0].tolist() == [1, 1, 0]
    assert step["is_init"][:, 0].tolist() == [False, False, True]


def test_random_steps_in_its_place_leave_its_outputs_zero_and_its_memory_true():
    played = Played(Counter())
    randomly = RandomActions(RandomPolicy(), played.spec, like=played.policy)
    assert randomly.keys == played.policy.keys

    def step():
        return {key: np.array(value) for key, value in zip(randomly.keys, randomly(observed(played.spec)), strict=True)}

    first, second = step(), step()
    assert first["is_init"].all()
    assert not second["is_init"].any()
    assert not any(step[key].any() for step in (first, second) for key in ("h", ("next", "h")))
    randomly.begin([1])
    assert step()["is_init"][:, 0].tolist() == [False, True, False]
    randomly.begin([0])
    randomly.rewind()
    after = played.step()
    assert after["is_init"][:, 0].tolist() == [False, True, False]
    assert after["h"].tolist() == [[0]] * 3
