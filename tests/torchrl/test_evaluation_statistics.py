"""Running statistics of TorchRL's envs in evaluations: they do not change, or come with the request."""

from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.envs import Compose, EnvCreator, GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import VecNorm, VecNormV2
from torchrl_toys import Counting, push

import ray_cluster
from swath import Collector, Evaluator, MultiSyncCollector

pytestmark = pytest.mark.usefixtures("fork_server")

KEYS = ["observation"]
PATH = "env.transform[1]"
FRAMES = 10


def normal(kind=VecNormV2):
    return TransformedEnv(Counting(), Compose(StepCounter(), kind(in_keys=KEYS, decay=0.9)))


def alone(kind=VecNormV2):
    return TransformedEnv(Counting(), kind(in_keys=KEYS, decay=0.9))


def trained(make=normal):
    env = make()
    env.rollout(12, lambda td: td.set("action", torch.zeros(1)), break_when_any_done=False)
    return env


def pushing():
    return TensorDictModule(push, KEYS, ["action"])


def held_up(gate):
    gate.go_through()
    return pushing()


def evaluator(env, observed=None, factory=pushing, **options):
    """Return an evaluator that records in `observed` the first input of its policy: a transformed observation of 0."""
    if options.get("backend") == "ray":
        ray_cluster.up()
        options = {"num_gpus": 0, "ray_kwargs": {"num_cpus": 0}, **options}

    def measure(batch):
        observed.append(float(batch["observation"][0, 0, 0]))
        return {}

    options = {"num_trajectories": 2, "metrics_fn": None if observed is None else measure, **options}
    return Evaluator(env, policy_factory=factory, **options)


def of_zero(transform):
    """Return the transformed observation of 0."""
    if isinstance(transform, VecNormV2):
        return float(-transform.loc["observation"] / transform.scale["observation"])
    td = transform._td
    mean = td["observation_sum"] / td["observation_count"]
    return float(-mean / (td["observation_ssq"] / td["observation_count"] - mean**2).clamp_min(1e-4).sqrt())


@pytest.mark.parametrize("kind", [VecNorm, VecNormV2])
def test_an_instance_is_frozen_from_the_constructor_on_and_given_back_as_it_was(kind):
    env = trained(partial(alone, kind))
    before = {name: value.clone() for name, value in env.transform.get_extra_state().items()}
    assert not env.transform.frozen
    with Evaluator(env, pushing(), num_trajectories=2) as judge:
        assert env.transform.frozen
        judge.evaluate()
    assert not env.transform.frozen
    after = env.transform.get_extra_state()
    assert {name: value.tolist() for name, value in after.items()} == {
        name: value.tolist() for name, value in before.items()
    }


def test_statistics_of_an_env_creator_are_shared_with_training_and_not_sent():
    creator, other = EnvCreator(partial(alone, VecNorm)), trained(partial(alone, VecNorm))
    with evaluator(creator) as judge:
        with pytest.raises(ValueError, match=r"EnvCreator.*shared with training.*env\.transform"):
            judge.evaluate(weights_dict={"env.transform": other.transform})
        assert judge.evaluate()["eval/num_episodes"] == 2


@pytest.mark.parametrize("layout", [{"backend": "thread"}, {"backend": "process", "num_envs": 3}], ids=str)
def test_statistics_that_are_sent_arrive_on_every_copy_and_are_used_as_they_are(layout):
    transform, observed = trained().transform[1], []
    with evaluator(normal, observed, num_trajectories=3, **layout) as judge:
        for _ in range(2):
            judge.evaluate(weights_dict={PATH: transform})
    assert observed == [pytest.approx(of_zero(transform), rel=1e-5)] * 2


def test_an_id_that_leads_nowhere_is_a_key_error_with_those_there_are_and_nothing_is_applied():
    good, observed = {PATH: trained().transform[1]}, []
    with evaluator(normal, observed) as judge:
        for wrong in ("env.transform[7]", "env.nothing", "env", "value", "env.transform[0"):
            with pytest.raises(KeyError, match=r"env\.transform\[0\].*env\.transform\[1\]"):
                judge.evaluate(weights_dict={**good, wrong: good[PATH]})
        judge.evaluate()
    assert observed[0] != pytest.approx(of_zero(good[PATH]), rel=0.01)


def test_statistics_of_another_shape_are_refused_and_leave_the_old_ones():
    other, observed = TransformedEnv(GymEnv("CartPole-v1"), VecNormV2(in_keys=KEYS)), []
    with evaluator(alone, observed) as judge:
        judge.evaluate(weights_dict={"env.transform": trained(alone).transform})
        with pytest.raises(ValueError, match=r"env\.transform.*shape"):
            judge.evaluate(weights_dict={"env.transform": other.transform})
        judge.evaluate()
    assert observed[0] == observed[1]


@pytest.mark.parametrize(
    ("place", "kind"), [("thread", VecNorm), ("thread", VecNormV2), ("process", VecNormV2), ("ray", VecNormV2)]
)
def test_an_evaluation_has_the_statistics_of_its_request_and_neither_side_moves_the_others(place, kind, gate):
    make, observed = partial(normal, kind), []
    with (
        Collector(make, pushing(), frames_per_batch=FRAMES) as collector,
        evaluator(make, observed, partial(held_up, gate), backend=place) as judge,
    ):
        collector.next()
        training = collector.env.transform[1]
        judge.trigger_eval(weights_dict={PATH: training})
        expected = of_zero(training)
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
    assert later != pytest.approx(expected, rel=0.01)
    assert observed == pytest.approx([expected, expected, later], rel=1e-4)


def test_statistics_of_a_worker_are_fetched_and_sent_like_those_of_an_env_here():
    options = {"sync": True, "frames_per_batch": 2 * FRAMES}
    observed = []
    with Collector(normal, pushing(), frames_per_batch=FRAMES) as trainer:
        trainer.next()
        expected = of_zero(trainer.env.transform[1])
    two = MultiSyncCollector([normal] * 2, pushing(), **options)
    with two as collector, evaluator(normal, observed) as judge:
        collector.next()
        judge.evaluate(weights_dict={PATH: collector.getattr_env("transform")[1]})
        judge.evaluate(weights_dict={PATH: collector.get_distant_attr(PATH)[0]})
    assert observed == pytest.approx([expected] * 2, rel=1e-4)
