"""Small things that RLlib's tests take from its utilities, for where RLlib is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from swath.rollout_workers import DEFAULT_POLICY_ID, DefaultCallbacks, MultiAgentBatch

T = TypeVar("T")
Wanted = Sequence[type[DefaultCallbacks]]


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
    if _same(x, y, Tolerance(absolute, rtol or 0.0)) == false:
        raise AssertionError(f"{x!r} and {y!r} are {'' if false else 'not '}the same")


class Tolerance(NamedTuple):
    """How far numbers may be apart."""

    absolute: float
    relative: float


def _same(x: Any, y: Any, tolerance: Tolerance) -> bool:
    if isinstance(x, Mapping) or isinstance(y, Mapping):
        keyed = isinstance(x, Mapping) and isinstance(y, Mapping) and x.keys() == y.keys()
        return keyed and all(_same(x[key], y[key], tolerance) for key in x)
    if isinstance(x, list | tuple) or isinstance(y, list | tuple) or _of_objects(x) or _of_objects(y):
        return len(x) == len(y) and all(_same(*pair, tolerance) for pair in zip(x, y, strict=True))
    x, y = _array(x), _array(y)
    if {x.dtype.kind, y.dtype.kind} <= set("biufc"):
        return x.shape == y.shape and bool(np.allclose(x, y, rtol=tolerance.relative, atol=tolerance.absolute))
    return bool(np.array_equal(x, y))


def _of_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object and value.ndim > 0


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


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


def override(_: type) -> Callable[[T], T]:
    """Mark a method that overrides one of a class."""
    return _as_it_is


def _as_it_is(thing: T) -> T:
    return thing


_ANNOTATIONS = ("DeveloperAPI", "OldAPIStack", "OverrideToImplementCustomLogic", "PublicAPI")
_METRICS = (
    "EPISODE_RETURN_MEAN",
    "NUM_AGENT_STEPS_SAMPLED",
    "NUM_AGENT_STEPS_TRAINED",
    "NUM_ENV_STEPS_SAMPLED",
    "NUM_ENV_STEPS_SAMPLED_LIFETIME",
    "NUM_ENV_STEPS_TRAINED",
)

FILLING: Mapping[str, Mapping[str, Any]] = {
    "ray.rllib.policy.sample_batch": {"DEFAULT_POLICY_ID": DEFAULT_POLICY_ID},
    "ray.rllib.utils": {"override": override, "check": check},
    "ray.rllib.utils.annotations": {"override": override, **dict.fromkeys(_ANNOTATIONS, _as_it_is)},
    "ray.rllib.utils.error": {"EnvError": type("EnvError", (Exception,), {})},
    "ray.rllib.utils.framework": {
        "try_import_tf": lambda error=False: (None, None, None),  # noqa: ARG005
        "try_import_torch": lambda error=False: (torch, torch.nn),  # noqa: ARG005
    },
    "ray.rllib.utils.metrics": {"ENV_RUNNER_RESULTS": "env_runners", **{name: name.lower() for name in _METRICS}},
    "ray.rllib.utils.numpy": {"one_hot": one_hot},
    "ray.rllib.utils.test_utils": {"check": check, "check_same_batch": check_same_batch},
    "ray.rllib.utils.torch_utils": {"convert_to_torch_tensor": convert_to_torch_tensor},
}
"""What is in modules in the place of RLlib's, beside our names."""
