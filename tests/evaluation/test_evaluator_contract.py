"""The contract of evaluations on every backend."""

from functools import partial

import numpy as np
import pytest
import torch
from eval_mischief import Mischief, make_policy
from uneven_env import Shifted, UnevenEnv, played

from swath.evaluators import Evaluator


class Straying(torch.nn.Module):
    """Draws an action of 0 … 6 for any observation."""

    def forward(self, observation):
        return torch.randint(0, 7, observation.shape[:-1])


ENTRIES = {
    "metrics": {"per_episode": True, "metrics_fn": lambda td: {"rows": td.numel()}},
    "video": {"env": "uneven_env:UnevenEnv-v0", "record_video": 1},
}


class EvaluatorContract:
    """Exact, unbiased, in order, and bit for bit equal on every backend and layout.

    Attributes:
        backend: of the evaluations.
        options: further arguments of evaluators on this backend.
        layouts: numbers of envs and of workers that must give the same numbers; in a thread there is one worker.
    """

    backend = "thread"
    options = {}
    layouts = ((1, 1), (4, 1), (7, 1), (1, 3), (4, 3), (7, 3))

    @pytest.fixture
    def make(self):
        """Return a function that makes an evaluator; its arguments replace the options of the class."""

        def make(**options):
            place = options.pop("backend", self.backend)
            options = {"num_trajectories": 23, "policy_factory": Shifted, **options}
            defaults = self.options if place == self.backend else {}
            return Evaluator(options.pop("env", UnevenEnv), backend=place, **{**defaults, **options})

        return make

    @pytest.fixture
    def blocked(self, make, tmp_path):
        """Return a function that makes an evaluator whose policy first waits at a gate, and the gate."""
        mischief = Mischief.at(tmp_path)
        mischief.order("policy", "hang")
        policy = partial(make_policy, mischief)
        return partial(make, policy_factory=policy, num_trajectories=2), mischief.gate

    @pytest.fixture
    def once(self, request):
        """Return a function that makes a result once for all tests of the class."""
        results = vars(request.node.parent).setdefault("results", {})

        def make(name, evaluator):
            if name not in results:
                results[name] = evaluated(evaluator)
            return results[name]

        return make

    def pytest_generate_tests(self, metafunc):
        if "layout" in metafunc.fixturenames:
            several = self.backend != "thread"
            metafunc.parametrize("layout", [layout for layout in self.layouts if several or layout[1] == 1], ids=str)

    def test_numbers_depend_on_no_layout(self, make, once, layout):
        alone = once("deterministic", make(backend="thread"))
        check_same(alone, evaluated(make(num_envs=layout[0], num_workers=layout[1])))

    def test_noise_is_that_of_the_episode_in_every_layout(self, make, once, layout):
        if self.backend == "thread":
            pytest.skip("evaluations in a thread draw from the process's generators")
        options = {"policy_factory": Straying, "exploration_type": "RANDOM"}
        alone = once("stochastic", make(num_envs=1, num_workers=1, **options))
        check_same(alone, evaluated(make(num_envs=layout[0], num_workers=layout[1], **options)))

    def test_the_same_weights_play_the_same_episodes_again(self, make):
        with make(num_envs=3) as evaluator:
            first, second = evaluator.evaluate(), evaluator.evaluate()
        check_same(first, second, but=("eval/step",))

    def test_every_episode_counts_once_in_slots_of_3_or_41_steps(self, make):
        with make(num_envs=2) as evaluator:
            result = evaluator.evaluate()
        expected = [played(seed) for seed in result.seeds]
        assert [*zip(result.returns, result.lengths, strict=True)] == expected
        assert result["eval/reward"] == np.mean([total for total, _ in expected])
        assert result["eval/episode_length"] == np.mean([length for _, length in expected])

    def test_requests_are_served_in_order_with_the_weights_of_their_moment(self, make):
        policy = Shifted()
        built = {name: value.clone() for name, value in policy.state_dict().items()}
        changed = Shifted(3).state_dict()
        with make(busy_policy="queue") as evaluator:
            for weights in (built, changed, built):
                policy.load_state_dict(weights)
                assert evaluator.trigger_eval(policy)
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.fill_(float("nan"))
            results = [evaluator.wait() for _ in range(3)]
            assert evaluator.evaluate(changed)["eval/reward"] == results[1]["eval/reward"]
            assert evaluator.wait() is None
        check_same(results[0], results[2], but=("eval/step", "eval/policy_version"))
        assert results[0].returns.tolist() != results[1].returns.tolist()
        assert [result.step for result in results] == [0, 1, 2]
        assert [result["eval/policy_version"] for result in results] == [1, 2, 3]

    @pytest.mark.parametrize(
        ("policy", "accepted", "steps", "count"),
        [
            ("queue", [True, True], [0, 1, 2], {}),
            ("skip", [False, False], [0], {"skipped": 2}),
            ("latest", [True, True], [0, 2], {"superseded": 1}),
        ],
    )
    def test_a_busy_policy_accepts_skips_or_supersedes(self, blocked, policy, accepted, steps, count):
        make, gate = blocked
        with make(busy_policy=policy) as evaluator:
            evaluator.trigger_eval(step=0)
            gate.await_arrival()
            assert [evaluator.trigger_eval(step=step) for step in (1, 2)] == accepted
            gate.open()
            assert [evaluator.wait().step for _ in steps] == steps
            assert evaluator.wait() is None
            assert not evaluator.pending
            assert {key: evaluator.stats()[key] for key in count} == count

    def test_a_busy_evaluator_refuses_by_default(self, blocked):
        make, gate = blocked
        with make() as evaluator:
            evaluator.trigger_eval()
            gate.await_arrival()
            assert evaluator.pending
            with pytest.raises(RuntimeError, match=r"Evaluation already pending.*busy_policy='queue'"):
                evaluator.trigger_eval()
            gate.open()
            assert evaluator.wait().step == 0
            assert evaluator.evaluate().step == 1

    @pytest.mark.parametrize("options", ENTRIES.values(), ids=ENTRIES)
    def test_entries_are_those_of_a_thread(self, make, options):
        expected, result = (
            evaluated(make(num_trajectories=2, **options, **place)) for place in ({"backend": "thread"}, {})
        )
        assert {key: type(value) for key, value in expected.items()} == {
            key: type(value) for key, value in result.items()
        }
        check_same(expected, result)


def evaluated(evaluator):
    with evaluator:
        return evaluator.evaluate()


def check_same(first, second, but=()):
    """Check that two results are equal bit for bit, in all but their durations."""
    for name in ("seeds", "lengths", "returns", "terminated", "truncated"):
        assert equal(getattr(first, name), getattr(second, name)), name
    assert first.keys() == second.keys()
    for key in first.keys() - {"eval/fps", "eval/duration_s", *but}:
        assert equal(first[key], second[key]), f"{key} differs: {first[key]} and {second[key]}"


def equal(first, second):
    first, second = np.asarray(first), np.asarray(second)
    return first.dtype == second.dtype and np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


class TestInAThread(EvaluatorContract):
    pass


@pytest.mark.usefixtures("fork_server")
class TestInEnvProcesses(EvaluatorContract):
    options = {"num_envs": 4, "env_processes": 2}
    layouts = ((4, 1), (7, 1))


@pytest.mark.usefixtures("fork_server")
class TestInProcesses(EvaluatorContract):
    backend = "process"


@pytest.mark.usefixtures("lent_actors")
class TestOnRay(EvaluatorContract):
    backend = "ray"
    options = {"num_gpus": 0, "ray_kwargs": {"num_cpus": 0}}
    layouts = ((7, 3),)


class Leaning(torch.nn.Module):
    """Deterministic, computed row by row."""

    def forward(self, observation):
        return ((observation * torch.tensor([0.0, -1.0, 1.0, 1.0])).sum(-1) > 0).long()


def test_numbers_depend_on_no_layout_in_an_env_of_floats():
    options = {"policy_factory": Leaning, "num_trajectories": 9, "max_steps": 60}
    alone, together = (evaluated(Evaluator("CartPole-v1", num_envs=num_envs, **options)) for num_envs in (1, 8))
    check_same(alone, together)
