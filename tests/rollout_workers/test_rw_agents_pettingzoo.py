"""PettingZoo's own envs in a worker: agents that act together, and the same agents in turn."""

import warnings

import numpy as np
import pytest
from agent_toys import Counter, Troupe

pytest.importorskip("pettingzoo")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    simple_spread = pytest.importorskip("mpe2.simple_spread_v3", exc_type=ImportError)

CYCLES, AGENTS = 6, ("agent_0", "agent_1", "agent_2")


class BySight(Counter):
    """Acts by what it sees."""

    wanted = ("agent_id",)

    def compute_actions(self, obs_batch, state_batches=None, **given):
        return np.abs(obs_batch * 1000).astype(int).sum(axis=1) % 5, [], {}


def sampled(make, length, **config):
    troupe = Troupe(make, 2, {"default_policy": BySight}, seed=4, rollout_fragment_length=length, **config)
    with troupe:
        return troupe.sample()


def parallel():
    return simple_spread.parallel_env(max_cycles=CYCLES)


def in_turn():
    return simple_spread.env(max_cycles=CYCLES)


def test_agents_in_turn_make_the_same_transitions_as_together():
    together = sampled(parallel, CYCLES)
    turns = sampled(in_turn, CYCLES * len(AGENTS))
    assert turns.env_steps() == 2 * CYCLES * len(AGENTS)
    assert list(turns["agent_id"]) == list(together["agent_id"])
    for name in ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"):
        np.testing.assert_allclose(turns[name], together[name], atol=1e-6)
    assert turns["t"][: CYCLES - 1].tolist() == [3 * turn + 2 for turn in range(CYCLES - 1)]
