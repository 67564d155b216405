"""What stands for RLlib's algorithms, and for the small things that its tests take from its utilities.

config.build() ──▶ WorkerSet ──train()──▶ sample from all ──▶ local worker learns ──▶ weights and counts to all
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NoReturn, TypeVar

import gymnasium as gym
import numpy as np
import torch

from swath import rollout_workers
from swath.rollout_workers import (
    DEFAULT_POLICY_ID,
    AlgorithmConfig,
    PGTorchPolicy,
    Policy,
    PPOTorchPolicy,
    RolloutWorker,
    WorkerSet,
    collect_metrics,
    synchronous_parallel_sample,
)

T = TypeVar("T")


class Algorithm:
    """Workers, and updates with what they sample. It learns a little, and is nothing to use.

    Args:
        config: of them; `config.env` says what they act in.
    """

    policy_class: ClassVar[type[Policy]]

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config
        self.env_runner_group = self.workers = WorkerSet(config=config, default_policy_class=self.policy_class)
        self.env_runner: RolloutWorker = self.workers.local_env_runner
        self._env_steps = self._agent_steps = 0

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Any:
        """A policy of the local worker."""
        return self.env_runner.get_policy(policy_id)

    def train(self) -> dict[str, Any]:
        """Sample `train_batch_size` env steps, learn from them once, and say what there is to say."""
        steps = self.config.train_batch_size
        batch: Any = synchronous_parallel_sample(worker_set=self.env_runner_group, max_env_steps=steps)
        self._env_steps += batch.env_steps()
        self._agent_steps += batch.agent_steps()
        self.env_runner.learn_on_batch(batch)
        counts = {"timestep": self._agent_steps}
        self.env_runner.set_global_vars(counts)
        self.env_runner_group.sync_weights(global_vars=counts)
        return {
            "env_runners": collect_metrics(self.env_runner_group),
            "info": dict.fromkeys(("num_agent_steps_sampled", "num_agent_steps_trained"), self._agent_steps),
            "num_env_steps_sampled_lifetime": self._env_steps,
        }

    def stop(self) -> None:
        """End the workers."""
        self.env_runner_group.stop()


class PPOAlgorithm(Algorithm):
    """With the policy of PPO."""

    policy_class = PPOTorchPolicy


class PG(Algorithm):
    """With the policy of a plain policy gradient."""

    policy_class = PGTorchPolicy


class PPOAlgorithmConfig(rollout_workers.PPOConfig):
    """Settings that RLlib's PPO has by default."""

    def build(self, *_: Any, **__: Any) -> PPOAlgorithm:  # type: ignore[override]  # ours builds none
        """The algorithm."""
        return PPOAlgorithm(self)


class PGConfig(AlgorithmConfig):
    """Settings that RLlib's PG had by default."""

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class)
        self.env_runners(num_env_runners=0, rollout_fragment_length="auto")
        self.training(train_batch_size=200, lr=4e-4)

    def build(self, *_: Any, **__: Any) -> PG:  # type: ignore[override]  # ours builds none
        """The algorithm."""
        return PG(self)


def check(
    x: Any, y: Any, decimals: int = 5, atol: float | None = None, rtol: float | None = None, false: bool = False
) -> None:
    """Compare what may be nested, numbers with a tolerance.

    Args:
        x: this.
        y: that.
        decimals: of a number that count, if no other tolerance is given.
        atol: absolute tolerance.
        rtol: relative tolerance.
        false: they must differ.

    Raises:
        AssertionError: they differ, or do not.
    """
    absolute = 10.0**-decimals if atol is None and rtol is None else atol or 0.0
    if _same(x, y, partial(np.allclose, atol=absolute, rtol=rtol or 0.0)) == false:
        raise AssertionError(f"{x!r} and {y!r} are {'' if false else 'not '}the same")


def _same(x: Any, y: Any, close: Callable[[Any, Any], bool]) -> bool:
    x, y = (each.tolist() if isinstance(each, np.ndarray) and each.dtype == object else each for each in (x, y))
    if isinstance(x, Mapping):
        return isinstance(y, Mapping) and x.keys() == y.keys() and all(_same(x[key], y[key], close) for key in x)
    if isinstance(x, list | tuple):
        return len(x) == len(y) and all(_same(*pair, close) for pair in zip(x, y, strict=True))
    x, y = (np.asarray(each.detach().cpu() if isinstance(each, torch.Tensor) else each) for each in (x, y))
    numbers = {x.dtype.kind, y.dtype.kind} <= set("biufc")
    return x.shape == y.shape and bool(close(x, y) if numbers else np.array_equal(x, y))


def check_same_batch(batch1: Any, batch2: Any) -> None:
    """Compare two batches.

    Raises:
        AssertionError: they differ.
    """
    assert type(batch1) is type(batch2)
    one, other = (
        {policy_id: dict(part) for policy_id, part in batch.as_multi_agent().policy_batches.items()}
        for batch in (batch1, batch2)
    )
    check(one, other)
    assert batch1.count == batch2.count


def one_hot(x: Any, depth: int, on_value: float = 1.0, off_value: float = 0.0) -> Any:
    """Rows of which one place is on."""
    return np.where(np.eye(depth, dtype=bool)[np.asarray(x)], on_value, off_value).astype(np.float32)


def convert_to_torch_tensor(x: Any, device: Any = None) -> torch.Tensor:
    """A tensor of an array; float64 becomes float32."""
    tensor = torch.as_tensor(x, device=device)
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _as_it_is(thing: T) -> T:
    return thing


def override(*_: Any, **__: Any) -> Callable[[T], T]:
    """Mark a method that overrides one of a class; in the place of `Deprecated`, what is old."""
    return _as_it_is


def try_import_tf(error: bool = False) -> tuple[None, None, None]:
    """No TensorFlow."""
    return None, None, None


def try_import_torch(error: bool = False) -> tuple[Any, Any]:
    """torch, and its `nn`."""
    return torch, torch.nn


def framework_iterator(config: Any = None, frameworks: str | Sequence[str] = "torch", **_: Any) -> Iterator[str]:
    """Yield the frameworks that a test is to be run with and that are here: torch, or none."""
    names = [frameworks] if isinstance(frameworks, str) else frameworks
    yield from ("torch" for name in names if name == "torch")


class Repeated(gym.Space[Any]):
    """Describe lists of varying length. Modules of tests make and sample one; no preprocessor of ours takes it."""

    def __init__(self, child_space: gym.Space[Any], max_len: int) -> None:
        super().__init__()
        self.child_space, self.max_len = child_space, max_len

    def sample(self, mask: None = None, probability: None = None) -> list[Any]:
        """Draw from 1 to `max_len` samples of the child space."""
        return [self.child_space.sample() for _ in range(self.np_random.integers(1, self.max_len + 1))]


class EnvError(Exception):
    """What RLlib raises for what is wrong with an env."""


make_multi_callbacks = _as_it_is  # `AlgorithmConfig.callbacks` takes a list
DeveloperAPI = OldAPIStack = OverrideToImplementCustomLogic = PublicAPI = _as_it_is
ENV_RUNNER_RESULTS = "env_runners"
EPISODE_RETURN_MEAN = "episode_return_mean"
NUM_AGENT_STEPS_SAMPLED = "num_agent_steps_sampled"
NUM_AGENT_STEPS_TRAINED = "num_agent_steps_trained"
NUM_ENV_STEPS_SAMPLED = "num_env_steps_sampled"
NUM_ENV_STEPS_SAMPLED_LIFETIME = "num_env_steps_sampled_lifetime"
NUM_ENV_STEPS_TRAINED = "num_env_steps_trained"


def missing(owner: str, name: str) -> type:
    """A class that can be imported and not be made, for a name that a module in RLlib's place lacks."""
    if name.startswith("__"):
        raise AttributeError(f"module {owner!r} has no attribute {name!r}")
    return type(name, (), {"__module__": owner, "__init__": partial(_refuse, f"{owner}.{name}")})


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(f"{name} is not installed, and swath has nothing in its place")
