"""Statistics that training keeps in its envs, in evaluations beside it: those of the moment they were asked for."""

from functools import partial

import pytest
from tensordict.nn import TensorDictModule
from torchrl.envs import Compose, StepCounter, TransformedEnv
from torchrl.envs.transforms import VecNorm, VecNormV2
from torchrl_toys import Counting, push

import ray_cluster
from swath import Collector, Evaluator, MultiSyncCollector
from toys import Gate

KEYS = ["observation"]
PATH = "env.transform[1]"
FRAMES = 10


@pytest.fixture
def gate(tmp_path):
    gate = Gate.at(tmp_path / "gate")
    yield gate
    gate.open()


def normal(kind=VecNormV2):
    return TransformedEnv(Counting(), Compose(StepCounter(), kind(in_keys=KEYS, decay=0.9)))


def pushing():
    return TensorDictModule(push, KEYS, ["action"])


def held_up(gate):
    gate.go_through()
    return pushing()


def evaluator(place, env, seen, factory=pushing):
    """What the policy saw first in each evaluation goes to `seen`: what the env makes of an observation of 0."""
    options = {}
    if place == "ray":
        ray_cluster.up()
        options = {"num_gpus": 0, "ray_kwargs": {"num_cpus": 0}}

    def measure(batch):
        seen.append(float(batch["observation"][0, 0, 0]))
        return {}

    options = {"num_trajectories": 2, "metrics_fn": measure, "backend": place, **options}
    return Evaluator(env, policy_factory=factory, **options)


def of_zero(transform):
    """What a transform makes of an observation of 0."""
    if isinstance(transform, VecNormV2):
        return float(-transform.loc["observation"] / transform.scale["observation"])
    td = transform._td
    mean = td["observation_sum"] / td["observation_count"]
    return float(-mean / (td["observation_ssq"] / td["observation_count"] - mean**2).clamp_min(1e-4).sqrt())


@pytest.mark.parametrize(
    ("place", "kind"), [("thread", VecNorm), ("thread", VecNormV2), ("process", VecNormV2), ("ray", VecNormV2)]
)
def test_an_evaluation_has_the_statistics_of_its_request_and_neither_side_moves_the_others(place, kind, gate):
    make, seen = partial(normal, kind), []
    with (
        Collector(make, pushing(), frames_per_batch=FRAMES) as collector,
        evaluator(place, make, seen, partial(held_up, gate)) as judge,
    ):
        collector.next()
        training = collector.env.transform[1]
        judge.trigger_eval(weights_dict={PATH: training})
        asked = of_zero(training)
        gate.await_arrival()
        collector.next()
        later = of_zero(training)
        gate.open()
        judge.wait()
        judge.evaluate()
        assert of_zero(training) == later
        assert not training.frozen
        judge.evaluate(weights_dict={PATH: training})
        collector.next()
        assert of_zero(training) != later
    assert later != pytest.approx(asked, rel=0.01)
    assert seen == pytest.approx([asked, asked, later], rel=1e-4)


def test_statistics_of_a_worker_are_fetched_and_sent_like_those_of_an_env_here():
    options = {"sync": True, "frames_per_batch": 2 * FRAMES}
    seen = []
    with Collector(normal, pushing(), frames_per_batch=FRAMES) as here:
        here.next()
        expected = of_zero(here.env.transform[1])
    two = MultiSyncCollector([normal] * 2, pushing(), **options)
    with two as collector, evaluator("thread", normal, seen) as judge:
        collector.next()
        judge.evaluate(weights_dict={PATH: collector.getattr_env("transform")[1]})
        judge.evaluate(weights_dict={PATH: collector.get_distant_attr(PATH)[0]})
    assert seen == pytest.approx([expected] * 2, rel=1e-4)
