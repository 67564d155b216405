"""What stands for RLlib's algorithms, and for the small things that its tests take from its utilities.

config.build() ──▶ WorkerSet ──train()──▶ sample from all ──▶ local worker learns ──▶ weights and counts to all
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
import torch

from swath.rollout_workers import (
    DEFAULT_POLICY_ID,
    AlgorithmConfig,
    DefaultCallbacks,
    MultiAgentBatch,
    PGTorchPolicy,
    Policy,
    PPOConfig,
    PPOTorchPolicy,
    RolloutWorker,
    WorkerSet,
    collect_metrics,
    synchronous_parallel_sample,
)
from swath.rollout_workers import Episode as EpisodeV2  # noqa: F401  its old name

T = TypeVar("T")
Wanted = Sequence[type[DefaultCallbacks]]


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

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Policy | None:
        """A policy of the local worker."""
        policy: Policy | None = self.env_runner.get_policy(policy_id)
        return policy

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


class PGAlgorithm(Algorithm):
    """With the policy of a plain policy gradient."""

    policy_class = PGTorchPolicy


class PPOSettings(PPOConfig):
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

    def build(self, *_: Any, **__: Any) -> PGAlgorithm:  # type: ignore[override]  # ours builds none
        """The algorithm."""
        return PGAlgorithm(self)


RLLIB = SimpleNamespace(PPO=PPOAlgorithm, PPOConfig=PPOSettings, PG=PGAlgorithm)
"""Classes that RLlib has under names for which swath has others."""


def make_multi_callbacks(callback_class_list: Wanted) -> Wanted:
    """What `AlgorithmConfig.callbacks` takes for several classes: a list."""
    return callback_class_list


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
    if isinstance(batch1, MultiAgentBatch):
        assert batch1.policy_batches.keys() == batch2.policy_batches.keys()
        for policy_id, batch in batch1.policy_batches.items():
            check_same_batch(batch, batch2.policy_batches[policy_id])
    else:
        check(dict(batch1), dict(batch2))
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


def override(_: type) -> Callable[[T], T]:
    """Mark a method that overrides one of a class."""
    return _as_it_is


_ANNOTATIONS = ("DeveloperAPI", "OldAPIStack", "OverrideToImplementCustomLogic", "PublicAPI")
_METRICS = (
    "episode_return_mean num_agent_steps_sampled num_agent_steps_trained num_env_steps_sampled "
    "num_env_steps_sampled_lifetime num_env_steps_trained"
)
FILLING: Mapping[str, Mapping[str, Any]] = {
    "ray.rllib.policy.sample_batch": {"DEFAULT_POLICY_ID": DEFAULT_POLICY_ID},
    "ray.rllib.utils": {"override": override, "check": check},
    "ray.rllib.utils.annotations": {"override": override, **dict.fromkeys(_ANNOTATIONS, _as_it_is)},
    "ray.rllib.utils.deprecation": {"Deprecated": lambda **_: _as_it_is},
    "ray.rllib.utils.error": {"EnvError": type("EnvError", (Exception,), {})},
    "ray.rllib.utils.framework": {
        "try_import_tf": lambda error=False: (None, None, None),  # noqa: ARG005
        "try_import_torch": lambda error=False: (torch, torch.nn),  # noqa: ARG005
    },
    "ray.rllib.utils.metrics": {
        "ENV_RUNNER_RESULTS": "env_runners",
        **{name.upper(): name for name in _METRICS.split()},
    },
    "ray.rllib.utils.numpy": {"one_hot": one_hot},
    "ray.rllib.utils.test_utils": {"check": check, "check_same_batch": check_same_batch},
    "ray.rllib.utils.torch_utils": {"convert_to_torch_tensor": convert_to_torch_tensor},
}
"""What is in modules in the place of RLlib's, besides our names."""


def names_of(module: str) -> Mapping[str, Any]:
    """What a module that stands for one of RLlib's has, with a class that cannot be used for every other name."""
    return {**FILLING.get(module, {}), "__getattr__": partial(_missing, module)}


def _missing(owner: str, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(f"module {owner!r} has no attribute {name!r}")
    return type(name, (), {"__module__": owner, "__init__": partial(_refuse, f"{owner}.{name}")})


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(f"{name} is not installed, and swath has nothing in its place")
