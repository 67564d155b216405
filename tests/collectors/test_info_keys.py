"""Entries of infos in batches."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from swath import Collector, MultiSyncCollector
from tensor_simulators import NEXT_STEP, SAME_STEP, Simulator

pytestmark = pytest.mark.usefixtures("fork_server")


class Costs(gym.Env):
    """Episodes of three steps; the cost of a step is ten times its number, an entry at the end says success."""

    observation_space, action_space = gym.spaces.Box(-99, 99, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {"cost": -1.0}

    def step(self, action):
        self.t += 1
        over = self.t == 3
        info = {"cost": 10.0 * self.t, "log": {"x": self.t}} | ({"success": True} if over else {})
        return np.full(1, self.t, np.float32), 0.0, over, False, info


KEYS = ["cost", ("log", "x"), "success"]


def _require_right(batch):
    valid = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
    t, over = batch["next", "observation"][valid], batch["next", "done"][valid]
    assert (batch["next", "cost"][valid] == 10 * t).all()
    assert (batch["next", "log", "x"][valid] == t).all()
    success = batch["next", "success"][valid]
    assert (success[over] == 1).all()
    assert success[~over].isnan().all()
    assert over.any()


@pytest.mark.parametrize(
    "make",
    [
        Costs,
        partial(SyncVectorEnv, [Costs] * 2, autoreset_mode=AutoresetMode.NEXT_STEP),
        partial(SyncVectorEnv, [Costs] * 2, autoreset_mode=AutoresetMode.SAME_STEP),
        partial(SyncVectorEnv, [Costs] * 2, autoreset_mode=AutoresetMode.DISABLED),
    ],
    ids=["one", "next step", "same step", "disabled"],
)
def test_entries_are_those_of_the_step(make):
    with Collector(make, frames_per_batch=32, info_keys=KEYS) as c:
        _require_right(c.next())
        _require_right(c.next())


def test_entries_come_from_lists_and_from_other_processes():
    with MultiSyncCollector([Costs] * 2, frames_per_batch=64, info_keys=KEYS, envs_per_worker=2) as c:
        _require_right(c.next().reshape(4, -1))


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP], ids=lambda mode: mode.name)
def test_entries_of_tensors(mode):
    make = partial(Simulator, 4, mode)
    with Collector(make, frames_per_batch=32, info_keys=["cost", ("log", "mean"), "lost"]) as c:
        batch = c.next()
    valid = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
    assert (batch["next", "cost"] == 10 * batch["next", "observation"][..., 2:])[valid].all()
    mean = batch["next", "log", "mean"]
    assert (mean == mean[:1]).all()
    assert batch["next", "lost"].isnan().all()


class Masked(Simulator):
    """Only envs with an even number have a cost and the nested entry."""

    def step(self, actions):
        *returned, infos = super().step(actions)
        even = self.env % 2 == 0
        nested = {"x": torch.ones(4), "_x": even}
        return *returned, infos | {"_cost": even, "log": nested}


def test_masks_of_tensors_are_obeyed():
    with Collector(partial(Masked, 4, NEXT_STEP), frames_per_batch=32, info_keys=["cost", ("log", "x")]) as c:
        batch = c.next()
    for key in ("cost", ("log", "x")):
        entry = batch["next", key] if isinstance(key, str) else batch[("next", *key)]
        assert entry[1::2].isnan().all()
        assert not entry[::2].isnan().any()


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ("cost", TypeError, r"pass a list: \['cost'\]"),
        (["reward"], ValueError, "which batches have already"),
        (["observation"], ValueError, "which batches have already"),
        (["final_observation_missing"], ValueError, "which batches have already"),
        ([3], TypeError, "a key is a string"),
        (["log", ("log", "x")], ValueError, r"\('log', 'x'\)\] and entries around them"),
    ],
)
def test_keys_that_cannot_be_are_refused(keys, error, message):
    with pytest.raises(error, match=message):
        Collector(Costs, frames_per_batch=32, info_keys=keys)


def test_an_entry_that_is_no_number_is_named():
    class Words(Costs):
        def step(self, action):
            return *super().step(action)[:4], {"cost": "high"}

    with (
        Collector(Words, frames_per_batch=8, info_keys=["cost"]) as c,
        pytest.raises(ValueError, match="'cost' is 'high'"),
    ):
        c.next()
