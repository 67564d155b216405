"""Envs of several agents in processes of their own."""

import os

import numpy as np
import pytest

from swath.errors import WorkerLost
from swath.rollout_workers import AlgorithmConfig, MultiAgentEnv, RandomPolicy, RolloutWorker
from swath.testing.envs import BasicMultiAgent, SometimesZeroAgentsMultiAgent

SETTINGS = {"num_envs_per_env_runner": 4, "rollout_fragment_length": 50, "seed": 2}


def worker(create, **settings):
    config = AlgorithmConfig().update_from_dict({**SETTINGS, **settings})
    config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent, episode, **kwargs: f"p{agent % 2}")
    return RolloutWorker(env_creator=create, default_policy_class=RandomPolicy, config=config)


def test_they_give_the_same_rows_and_are_elsewhere():
    with worker(lambda context: SometimesZeroAgentsMultiAgent(5), remote_worker_envs=True) as remote:
        assert isinstance(remote.env, MultiAgentEnv)
        assert remote.env.get_agent_ids() == set(range(5))
        there, pids = remote.sample(), remote.foreach_env(lambda env: os.getpid())
    assert len({*pids, os.getpid()}) == 5
    assert there.env_steps() == 200
    with worker(lambda context: SometimesZeroAgentsMultiAgent(5)) as local:
        here = local.sample()
    for pid in ("p0", "p1"):
        for name, column in here[pid].items():
            np.testing.assert_array_equal(there[pid][name], column, err_msg=name)


class Dying(BasicMultiAgent):
    """Ends its process with a step of its first episode, the first time.

    Args:
        mark: a file that is made then.
    """

    def __init__(self, mark):
        super().__init__(2)
        self.mark = mark

    def step(self, action_dict):
        step = super().step(action_dict)
        if self.envs[0].i == 3 and not self.mark.exists():
            self.mark.touch()
            os._exit(3)
        return step


@pytest.mark.parametrize("restarts", [False, True])
def test_one_that_dies_has_failed_alone(tmp_path, restarts):
    def create(context):
        return Dying(tmp_path / "died") if context.vector_index == 1 else BasicMultiAgent(2)

    settings = {
        "rollout_fragment_length": 5,
        "num_envs_per_env_runner": 2,
        "delay_between_sub_environment_restarts_s": 0.0,
    }
    with worker(create, remote_worker_envs=True, restart_failed_sub_environments=restarts, **settings) as remote:
        if not restarts:
            with pytest.raises(WorkerLost):
                remote.sample()
        batch = remote.sample()
        assert batch["p0"]["t"].tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1, 2]
        assert batch["p0"]["truncateds"].tolist() == [False] * 6 + [True] + [False] * 3
        assert remote.counters["episodes_faulty"] == 1
