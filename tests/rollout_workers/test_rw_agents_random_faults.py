"""Whatever raises, and whenever: batches have their sizes, and each agent's rows are one trajectory without a gap."""

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import Counter, Troupe, by_parity

from swath.rollout_workers import MultiAgentEnv

N, F, CALLS = 3, 20, 12
CLOCK = [0]


class Brittle(MultiAgentEnv):
    """Agents come, wait, go and are paid at random, and the env raises now and then; no observation is seen twice."""

    random = np.random.default_rng(0)

    def __init__(self):
        self.agents = list(range(4))
        self.observation_space, self.action_space = gym.spaces.Box(0, np.inf, (1,)), gym.spaces.Discrete(2)
        super().__init__()

    def _some(self, probability):
        return [agent for agent in self.agents if self.random.random() < probability]

    def _show(self, agents):
        if self.random.random() < 0.03:
            raise OSError("broke")
        CLOCK[0] += len(agents)
        return {agent: np.array([CLOCK[0] + agent / 8], np.float32) for agent in agents}

    def reset(self, *, seed=None, options=None):
        return self._show(self.agents), {}

    def step(self, action_dict):
        over = {"__all__": self.random.random() < 0.05}
        return self._show(self._some(0.6)), dict.fromkeys(self._some(0.6), 1.0), over, {"__all__": False}, {}


class Fallible(Counter):
    """Raises now and then."""

    random = np.random.default_rng(1)

    def compute_actions(self, obs_batch, state_batches=None, **given):
        if self.random.random() < 0.02:
            raise OSError("no idea")
        return np.zeros(len(obs_batch), int), [], {}


def next_batch(troupe):
    """The next batch, and how often something was raised before."""
    for tries in range(100):
        try:
            return troupe.sample(), tries
        except OSError:
            pass
    raise AssertionError("nothing but errors")


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_batches_have_their_sizes_and_trajectories_no_gaps(mode, restarts):
    settings = {"restart_failed_sub_environments": restarts, "delay_between_sub_environment_restarts_s": 0.0}
    settings |= {"rollout_fragment_length": F, "batch_mode": mode}
    troupe = Troupe(Brittle, N, {"p0": Fallible, "p1": Fallible}, by_parity, **settings)
    raised, paths = 0, {}
    for _ in range(CALLS):
        batch, tries = next_batch(troupe)
        raised += tries
        assert batch.env_steps() == N * F if mode == "truncate_episodes" else batch.env_steps() >= N * F
        for pid, rows in batch.policy_batches.items():
            for row in rows.rows():
                paths.setdefault((row["eps_id"], pid, row["agent_index"]), []).append(row)
    assert raised
    assert troupe.counters["episodes_faulty"]
    assert troupe.counters["env_steps_sampled"] >= CALLS * N * F
    for path in paths.values():
        steps = [row["t"] for row in path]
        assert steps == sorted(set(steps))
        assert [row["obs"] for row in path[1:]] == [row["new_obs"] for row in path[:-1]]
        assert not any(row["terminateds"] for row in path[:-1])
    ends = [path[-1]["terminateds"] or path[-1]["truncateds"] for path in paths.values()]
    assert all(ends) if mode == "complete_episodes" else np.mean(ends) > 0.8
