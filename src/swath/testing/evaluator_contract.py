"""What every evaluator keeps, as a pytest class: derive from it and say where it runs, or in which env.

```python
import pytest

from swath.testing import EvaluatorContract


class TestEvaluatingInMyEnv(EvaluatorContract):
    @pytest.fixture
    def make_env(self):
        return MyEnv

    @pytest.fixture
    def make_policy(self):
        return MyPolicy

    @pytest.fixture
    def other_weights(self):
        return MyPolicy.from_checkpoint("best.pt")


class TestEvaluatingInProcesses(TestEvaluatingInMyEnv):
    backend = "process"
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from swath.evaluation.evaluator import Evaluator
from swath.evaluation.result import EvalResult
from swath.rollout.spaces import Array
from swath.testing.toy_worker import Gate
from swath.testing.uneven_env import Shifted, UnevenEnv, played

_TIMING = ("eval/fps", "eval/duration_s")
_KNOWN: pytest.StashKey[dict[str, EvalResult]] = pytest.StashKey()


class Straying(torch.nn.Module):
    """Draws an action of 0 … 6 whatever it sees."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Actions `[*B]`."""
        return torch.randint(0, 7, observation.shape[:-1])


class Layouts:
    """Numbers follow from weights and seed, not from who plays which episode where."""

    backend: str

    @pytest.fixture
    def once(self, request: pytest.FixtureRequest) -> Callable[[str, Callable[[], EvalResult]], EvalResult]:
        """Makes a result that several tests of the class compare with once."""
        known: dict[str, EvalResult] = request.node.parent.stash.setdefault(_KNOWN, {})

        def make(name: str, evaluate: Callable[[], EvalResult]) -> EvalResult:
            if name not in known:
                known[name] = evaluate()
            return known[name]

        return make

    def test_numbers_depend_on_no_layout(self, make: Any, once: Any, layout: tuple[int, int]) -> None:
        """To the last bit."""
        alone = once("deterministic", lambda: evaluated(make(backend="thread")))
        check_same(alone, evaluated(make(num_envs=layout[0], num_workers=layout[1])))

    def test_noise_is_that_of_the_episode_in_every_layout(
        self, make: Any, make_noisy_policy: Any, once: Any, layout: tuple[int, int]
    ) -> None:
        """To the last bit, where the process is the worker's own."""
        if self.backend == "thread":
            pytest.skip("evaluations in a thread draw from the process's generators")
        options = {"policy_factory": make_noisy_policy, "exploration_type": "RANDOM"}
        alone = once("stochastic", lambda: evaluated(make(num_envs=1, num_workers=1, **options)))
        check_same(alone, evaluated(make(num_envs=layout[0], num_workers=layout[1], **options)))

    def test_the_same_checkpoint_meets_the_same_episodes(self, make: Any) -> None:
        """Again, and again after others."""
        with make(num_envs=3) as evaluator:
            first, second = evaluator.evaluate(), evaluator.evaluate()
        check_same(first, second, but=("eval/step",))


class Unbiased:
    """Short episodes count no more than long ones."""

    def test_every_episode_counts_once(self, make: Any) -> None:
        """Each as stepping by hand gives it, in two slots of 3 or 41 steps."""
        with make(env=UnevenEnv, policy_factory=Shifted, num_envs=2) as evaluator:
            result = evaluator.evaluate()
        by_hand = [played(seed) for seed in result.seeds]
        assert [*zip(result.returns, result.lengths, strict=True)] == by_hand
        assert result["eval/reward"] == np.mean([total for total, _ in by_hand])
        assert result["eval/episode_length"] == np.mean([length for _, length in by_hand])

    def test_numbers_of_episodes_are_exact(self, make: Any) -> None:
        """Also where slots stay idle."""
        with make(num_trajectories=5, num_envs=3) as evaluator:
            assert evaluator.evaluate()["eval/num_episodes"] == 5


class Requests:
    """Requests are served one after another, in order; busy policies say what becomes of them."""

    def test_requests_are_served_in_order_with_the_weights_of_their_moment(
        self, make: Any, make_policy: Any, other_weights: Any
    ) -> None:
        """Later changes of the source are not seen."""
        policy = make_policy()
        built = {name: value.clone() for name, value in policy.state_dict().items()}
        changed = other_weights.state_dict() if isinstance(other_weights, torch.nn.Module) else other_weights
        with make(busy_policy="queue") as evaluator:
            for weights in (built, changed, built):
                policy.load_state_dict(weights)
                assert evaluator.trigger_eval(policy)
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.fill_(float("nan"))
            results = read(evaluator, 3)
            assert evaluator.evaluate(changed)["eval/reward"] == results[1]["eval/reward"]
            assert evaluator.wait() is None
        check_same(results[0], results[2], but=("eval/step", "eval/policy_version"))
        assert results[0].returns.tolist() != results[1].returns.tolist()
        assert [result.step for result in results] == [0, 1, 2]
        assert [result["eval/policy_version"] for result in results] == [1, 2, 3]

    def test_busy_policies_do_what_they_say(self, make: Any, tmp_path: Path) -> None:
        """What is asked for while an evaluation is being played."""
        for policy, accepted, steps, count in (
            ("queue", [True, True], [0, 1, 2], {}),
            ("skip", [False, False], [0], {"skipped": 2}),
            ("latest", [True, True], [0, 2], {"superseded": 1}),
        ):
            gate = Gate.at(tmp_path / policy)
            with make(busy_policy=policy, **_held_at(gate)) as evaluator:
                evaluator.trigger_eval(step=0)
                gate.await_arrival()
                assert [evaluator.trigger_eval(step=step) for step in (1, 2)] == accepted
                gate.open()
                assert [result.step for result in read(evaluator, len(steps))] == steps
                assert evaluator.wait() is None
                assert not evaluator.pending
                assert {key: evaluator.stats()[key] for key in count} == count

    def test_a_busy_evaluator_refuses_unless_told_otherwise(self, make: Any, tmp_path: Path) -> None:
        """And goes on."""
        gate = Gate.at(tmp_path / "gate")
        with make(**_held_at(gate)) as evaluator:
            evaluator.trigger_eval()
            gate.await_arrival()
            assert evaluator.pending
            with pytest.raises(RuntimeError, match=r"Evaluation already pending.*busy_policy='queue'"):
                evaluator.trigger_eval()
            gate.open()
            assert evaluator.wait().step == 0
            assert evaluator.evaluate().step == 1

    def test_a_result_is_pending_while_it_is_shown(self, make: Any) -> None:
        """And can be read as soon as it is not."""
        seen, evaluators = [], list[Evaluator]()

        def look(_: Any) -> None:
            seen.append((evaluators[0].pending, evaluators[0].poll()))

        with make(on_result=look) as evaluator:
            evaluators.append(evaluator)
            evaluator.trigger_eval(step=4)
            assert evaluator.wait().step == 4
            assert not evaluator.pending
        assert seen == [(True, None)]

    def test_an_exception_of_the_policy_is_the_outcome_once(self, make: Any) -> None:
        """As its own type, and the next evaluation is fine."""
        with make(policy_factory=Touchy, env=UnevenEnv) as evaluator:
            evaluator.trigger_eval(Touchy(-1))
            with pytest.raises(ZeroDivisionError, match="too touchy"):
                evaluator.wait()
            assert evaluator.poll() is None
            assert evaluator.evaluate(Touchy(1))["eval/num_episodes"] > 0


class Held(Shifted):
    """Waits at a gate before it acts for the first time.

    Args:
        gate: closed at first.
    """

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate: Gate | None = gate

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """As `Shifted`."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.go_through()
        return super().forward(observation)


class Touchy(Shifted):
    """Raises where its weight is negative."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """As `Shifted`."""
        if self.shift.item() < 0:
            raise ZeroDivisionError("too touchy")
        return super().forward(observation)


class Keys:
    """Results have the same entries everywhere."""

    def test_entries_are_those_of_a_thread(self, make: Any) -> None:
        """With what can be asked for beside."""
        for options in (
            {"per_episode": True, "metrics_fn": lambda td: {"rows": td.numel()}},
            {"env": "swath.testing.uneven_env:UnevenEnv-v0", "policy_factory": Shifted, "record_video": 1},
        ):
            here, there = (
                evaluated(make(num_trajectories=2, **options, **place)) for place in ({"backend": "thread"}, {})
            )
            assert {key: type(value) for key, value in here.items()} == {
                key: type(value) for key, value in there.items()
            }
            check_same(here, there)


class EvaluatorContract(Layouts, Unbiased, Requests, Keys):
    """Tests of an evaluator: layouts, quotas, order, weights, busy policies, keys.

    Fixtures to override: `make_env`, what builds the env; `make_policy`, what builds a policy that is deterministic and
    computed row by row; `other_weights`, a module, or a state dict, with which that policy gets other returns;
    `make_noisy_policy`, what builds a policy that draws.

    Attributes:
        backend: where evaluations run.
        options: further arguments of every evaluator that runs there.
        layouts: numbers of envs and of workers that must give the same numbers; in a thread there is one worker.
        num_trajectories: episodes of an evaluation.
        max_steps: most steps of an episode.
    """

    backend = "thread"
    options: ClassVar[Mapping[str, Any]] = {}
    layouts: ClassVar[Sequence[tuple[int, int]]] = ((1, 1), (4, 1), (7, 1), (1, 3), (4, 3), (7, 3))
    num_trajectories = 23
    max_steps: int | None = None

    @pytest.fixture
    def make_env(self) -> Any:
        """Override: what builds the env."""
        return UnevenEnv

    @pytest.fixture
    def make_policy(self) -> Callable[[], Any]:
        """Override: what builds the policy."""
        return Shifted

    @pytest.fixture
    def other_weights(self) -> Any:
        """Override: weights with which it acts in another way."""
        return Shifted(3)

    @pytest.fixture
    def make_noisy_policy(self) -> Callable[[], Any]:
        """Override: what builds a policy that draws its actions."""
        return Straying

    @pytest.fixture
    def make(self, make_env: Any, make_policy: Any) -> Callable[..., Evaluator]:
        """Makes an evaluator; arguments take the place of those of the class."""

        def make(**options: Any) -> Evaluator:
            place = options.pop("backend", self.backend)
            given = {"num_trajectories": self.num_trajectories, "max_steps": self.max_steps, "env": make_env, **options}
            given.setdefault("policy_factory", make_policy)
            more = self.options if place == self.backend else {}
            return Evaluator(given.pop("env"), backend=place, **{**more, **given})

        return make

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test per layout."""
        if "layout" in metafunc.fixturenames:
            several = self.backend != "thread"
            metafunc.parametrize("layout", [each for each in self.layouts if several or each[1] == 1], ids=str)


def evaluated(evaluator: Evaluator) -> EvalResult:
    """One evaluation; the evaluator is shut down."""
    with evaluator:
        return evaluator.evaluate()


def read(evaluator: Evaluator, n: int) -> list[EvalResult]:
    """The next n results."""
    results = [evaluator.wait() for _ in range(n)]
    return [result for result in results if result is not None]


def check_same(one: EvalResult, other: EvalResult, but: Sequence[str] = ()) -> None:
    """Check that results are equal to the last bit, in all but how long they took.

    Raises:
        AssertionError: the first difference.
    """
    for name in ("seeds", "lengths", "returns", "terminated", "truncated"):
        here, there = getattr(one, name), getattr(other, name)
        assert _equal(here, there), f"{name} differ: {here.tolist()} and {there.tolist()}"
    assert one.keys() == other.keys()
    for key in one.keys() - {*_TIMING, *but}:
        assert _equal(_plain(one[key]), _plain(other[key])), f"{key} differs: {one[key]} and {other[key]}"


def _plain(value: Any) -> Array:
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _equal(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _held_at(gate: Gate) -> dict[str, Any]:
    return {"env": UnevenEnv, "policy_factory": partial(Held, gate), "num_trajectories": 2}
