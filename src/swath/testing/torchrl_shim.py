"""A pytest plugin that runs tests written for TorchRL's collectors on ours: `pytest -p swath.testing.torchrl_shim`.

    pytest -p … ──▶ our names in torchrl.collectors, … ──▶ conftests and tests are imported ──▶ run ──▶ report, put back

Names are attributes of TorchRL's own modules, so that `from torchrl.collectors import Collector` gives ours; names that
TorchRL had once, as `SyncDataCollector`, are put there too. What we do not have stays TorchRL's. At the end of the run
stand the score and the names that were ours.
TorchRL's own tests look at a few attributes more, most of them private; our collectors have them while they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter
from tensordict.nn import TensorDictModule

import swath
from swath.collectors.base import BaseCollector
from swath.collectors.collector import Collector
from swath.collectors.many import ManyWorkers
from swath.collectors.multi import LocalMultiCollector, MultiAsyncCollector, MultiCollector
from swath.keys import COLLECTOR, NEXT
from swath.rollout.policies.binding import asked_for
from swath.testing.shim import Lent, Shim, Table, pickle_by_value

_SHIM = Shim(__name__, "TorchRL's collectors", "torchrl")
pytest_configure = _SHIM.pytest_configure
pytest_report_header = _SHIM.pytest_report_header


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Replace the names, in the modules of this version, before anything of the user's is imported."""
    if _SHIM.is_installed("torchrl.collectors.distributed"):
        _SHIM.apply({module: names for module, names in TABLE.items() if find_spec(module) is not None}, LENT)


def pytest_unconfigure() -> None:
    """Put TorchRL's names back."""
    _SHIM.undo()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Send what test modules have to other processes whole, if these could not import them there."""
    for item in items:
        if isinstance(item, pytest.Function) and GONE & set(vars(item.module)):
            pickle_by_value(item.module)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """The score, and which names were ours."""
    _SHIM.pytest_terminal_summary(terminalreporter)
    for line in _SHIM.swapped:
        terminalreporter.write_line(line)


class AsyncCollector(MultiAsyncCollector):
    """One worker in a process of its own; `Collector(…, backend="process")` is the same.

    Args:
        create_env_fn: a single env source.
        policy: as for any collector.
        create_env_kwargs: keywords for the source.
        **keywords: of `MultiAsyncCollector`.
    """

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *,
        create_env_kwargs: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__([create_env_fn], policy, create_env_kwargs=create_env_kwargs, **keywords)


class _Callable(type):
    """Builds what the function `swath.MultiCollector` builds, and knows their classes: TorchRL's tests do both."""

    def __call__(cls, *args: Any, **keywords: Any) -> LocalMultiCollector:
        return MultiCollector(*args, **keywords)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, LocalMultiCollector)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, LocalMultiCollector)


class MultiCollectorClass(metaclass=_Callable):
    """`MultiCollector` as a class."""


_OTHER_NAMES = {
    "AsyncCollector": AsyncCollector,
    "MultiCollector": MultiCollectorClass,
    "DataCollectorBase": swath.BaseCollector,
    "SyncDataCollector": swath.Collector,
    "aSyncDataCollector": AsyncCollector,
    "MultiSyncDataCollector": swath.MultiSyncCollector,
    "MultiaSyncDataCollector": swath.MultiAsyncCollector,
    "LocalWeightsUpdaterBase": swath.WeightUpdaterBase,
    "RemoteWeightsUpdaterBase": swath.WeightUpdaterBase,
    "MultiProcessedWeightSyncScheme": swath.MultiProcessWeightSyncScheme,
}
"""Names of TorchRL's that we do not have, or have for something else; those of old are among them."""

GONE = frozenset(name for name in _OTHER_NAMES if "DataCollector" in name)
"""Names that TorchRL had once: whoever imports them can do so only here."""

_COLLECTORS = (
    "BaseCollector Collector AsyncCollector MultiCollector MultiSyncCollector MultiAsyncCollector DataCollectorBase "
    "SyncDataCollector aSyncDataCollector MultiSyncDataCollector MultiaSyncDataCollector"
)
_UPDATERS = (
    "WeightUpdaterBase LocalWeightsUpdaterBase RemoteWeightsUpdaterBase VanillaWeightUpdater "
    "MultiProcessedWeightUpdater RayWeightUpdater RemoteModuleWeightUpdater"
)
_SCHEMES = (
    "WeightSyncScheme WeightStrategy RayWeightSyncScheme MultiProcessWeightSyncScheme MultiProcessedWeightSyncScheme "
    "SharedMemWeightSyncScheme NoWeightSyncScheme"
)
_NAMES = {
    "collectors": f"{_COLLECTORS} {_UPDATERS} Evaluator",
    "collectors.collectors": _COLLECTORS,
    "collectors.distributed": "RayCollector RayEvalWorker",
    "collectors.distributed.ray": "RayCollector",
    "collectors.distributed.ray_eval_worker": "RayEvalWorker",
    "collectors.weight_update": _UPDATERS,
    "collectors.utils": "split_trajectories",
    "weight_update": _SCHEMES,
    "weight_update.weight_sync_schemes": _SCHEMES,
    "data": "MultiStep",
    "data.postprocs": "MultiStep",
    "data.postprocs.postprocs": "MultiStep",
    "collectors._base": "BaseCollector",
    "collectors._single": "Collector",
    "collectors._single_async": "AsyncCollector",
    "collectors._multi_base": "MultiCollector",
    "collectors._multi_sync": "MultiSyncCollector",
    "collectors._multi_async": "MultiAsyncCollector",
    "collectors._evaluator": "Evaluator",
    "weight_update._ray": "RayWeightSyncScheme",
    "weight_update._mp": "MultiProcessWeightSyncScheme",
    "weight_update._shared": "SharedMemWeightSyncScheme",
    "weight_update._noupdate": "NoWeightSyncScheme",
}


def _ours(name: str) -> Any:
    return _OTHER_NAMES[name] if name in _OTHER_NAMES else getattr(swath, name)


TABLE: Table = {f"torchrl.{module}": {name: _ours(name) for name in names.split()} for module, names in _NAMES.items()}
"""Names that TorchRL had once are here too, and modules that not every version has."""


def _wrapped(collector: Collector) -> TensorDictModule:
    """The policy as TorchRL shows one that it has wrapped: with the names that its outputs have got."""
    env, policy = collector.env, collector.policy
    theirs = {NEXT, COLLECTOR, *env.observation_keys, *env.state_keys, *env.done_keys}
    outputs = [key for key, _ in collector.fake_tensordict().items() if key not in theirs]
    return TensorDictModule(policy, in_keys=env.observation_keys, out_keys=outputs)


def _at(path: str) -> property:
    return property(lambda collector: collector.cascade_execute(path))


def _asked_for(option: str) -> property:
    return property(lambda collector: asked_for(collector.cascade_execute(f"_request.options.{option}")))


LENT: Lent = {
    BaseCollector: {
        "_frames": property(lambda collector: collector.stats()["frames"]),
        "_iter": property(lambda collector: collector.stats()["batches"] - 1),
        "_use_buffers": True,
        "_legacy_weight_updater": property(lambda collector: collector.weight_updater is not None),
    },
    Collector: {
        "_wrapped_policy": property(_wrapped),
        "compiled_policy": _asked_for("compile_policy"),
        "cudagraphed_policy": _asked_for("cudagraph_policy"),
    },
    ManyWorkers: {
        "_weight_sync_schemes": _at("_outlet.schemes"),
        "preemptive_threshold": _at("_request.order.preemptive_threshold"),
        "interruptor": None,
    },
}
"""What TorchRL's own tests read of a collector that is no part of ours."""
