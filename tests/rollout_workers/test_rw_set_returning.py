"""What a worker that replaces another knows at its first row, as the row tells."""

import os
from collections.abc import Iterator

import numpy as np
import pytest
from gymnasium.spaces import Discrete

import ray_cluster
from swath import WorkerSet
from swath.rollout_workers import AlgorithmConfig, make_multi_agent
from swath.testing import Counting, CountingEnv
from swath.testing.checks import life_of
from swath.testing.telling import RoomForOne, Telling, TellingFilter


@pytest.fixture(params=["process", "ray"])
def workers(request, warm_processes) -> Iterator[WorkerSet]:
    """One, with two agents in its env: the first acts by policy "a", the second by "b"."""
    if request.param == "ray":
        ray_cluster.up()

    def env(context):
        agents = make_multi_agent(lambda _: RoomForOne(CountingEnv(0, Counting(action_space=Discrete(100)))))
        return agents({"num_agents": 2})

    config = AlgorithmConfig().env_runners(rollout_fragment_length=4, observation_filter=TellingFilter)
    config.multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda agent, *_, **__: "ab"[agent])
    options = {"env_creator": env, "default_policy_class": Telling, "config": config}
    with WorkerSet(**options, num_workers=1, backend=request.param) as made:
        yield made


def publish(workers, number):
    for policy in workers.local_worker().policy_map.values():
        policy.set_weights({"number": [number]})
    return workers.sync_weights()


def test_it_has_the_weights_filters_policies_and_mapping_that_are_the_newest(workers):
    publish(workers, 1)
    workers.sample()
    workers.sync_filters()
    seen = {policy_id: own.rs.n for policy_id, own in workers.local_worker().filters.items()}
    assert min(seen.values()) >= 4
    workers.add_policy("c", Telling, policy_mapping_fn=lambda agent, *_, **__: "ca"[agent])
    version = publish(workers, 2)
    workers.foreach_worker(lambda worker: os.kill(os.getpid(), 9), local_worker=False)
    batch = workers.sample()
    assert batch.env_steps() == 4
    firsts = {policy_id: rows[:1] for policy_id, rows in batch.policy_batches.items()}
    assert {policy_id: int(row["agent_index"][0]) for policy_id, row in firsts.items()} == {"c": 0, "a": 1}
    for policy_id, row in firsts.items():
        assert life_of(int(row["eps_id"][0])) == (1, 1)
        np.testing.assert_array_equal(row["obs"][0], [0, 0, 0, seen.get(policy_id, 0) + 1])
        assert (row["actions"][0], row["policy_version"][0]) == (2, version)


def test_it_acts_by_what_is_newer_from_its_next_fragment_on(workers):
    old = publish(workers, 1)
    workers.foreach_worker(lambda worker: os.kill(os.getpid(), 9), local_worker=False)
    first = workers.sample()
    assert {life_of(int(each)) for each in first["a"]["eps_id"]} == {(1, 1)}
    new = publish(workers, 2)
    for batch, expected in ((first, (1, old)), (workers.sample(), (2, new))):
        for rows in batch.policy_batches.values():
            assert set(zip(rows["actions"], rows["policy_version"], strict=True)) == {expected}
