"""What only a cluster can be asked for."""

import pytest
from evaluator_toys import evaluated, evaluator
from uneven_env import played

import ray_cluster


@pytest.fixture(scope="module")
def ray():
    return ray_cluster.up()


def test_options_of_an_actor_are_those_asked_for(ray):
    with evaluator("ray", num_gpus=0, ray_kwargs={"num_cpus": 0, "name": "judge"}) as ev:
        assert ev.evaluate().returns.tolist() == evaluated().returns.tolist()
        assert ray.get_actor("judge")


@pytest.mark.usefixtures("lent_actors")
def test_envs_threads_and_trajectories_are_those_asked_for(ray):
    seen = []
    settings = {"create_env_kwargs": {"name": "double"}, "num_threads": 2, "traj_format": "cat"}
    options = {"num_gpus": 0, "ray_kwargs": {"num_cpus": 0}, "collector_kwargs": settings, "num_workers": 2}
    result = evaluated("ray", metrics_fn=lambda td: seen.append(td) or {"rows": len(td)}, **options)
    assert result.returns.tolist() == [2 * played(seed)[0] for seed in result.seeds]
    assert seen[0]["next", "reward"].sum() == sum(result.returns)
    assert result["eval/rows"] == result["eval/frames"]
