"""A pytest plugin that runs tests written for TorchRL's collectors on ours: `pytest -p swath.testing.torchrl_shim`.

    pytest -p … ──▶ our names in torchrl.collectors, … ──▶ conftests and tests are imported ──▶ run ──▶ report, put back

Names are attributes of TorchRL's own modules, so that `from torchrl.collectors import Collector` gives ours; names that
TorchRL had once, as `SyncDataCollector`, are put there too. What we do not have stays TorchRL's. At the end of the run
stand the score and the names that were ours.
TorchRL's own tests look at a few attributes more, most of them private; our collectors have them while they run.
"""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter
from tensordict.nn import TensorDictModule

from swath import collectors, evaluators, weight_update
from swath.collectors.base import BaseCollector
from swath.collectors.collector import Collector
from swath.collectors.multi import LocalMultiCollector, ManyWorkers, MultiAsyncCollector, MultiCollector
from swath.keys import COLLECTOR, NEXT
from swath.rollout.policies.calling import asked_for
from swath.testing.shim import Lent, Shim, Table, ours, pickle_by_value, tables

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
    """One worker in a process of its own; `Collector(…, backend="process")` is the same."""

    def __init__(self, create_env_fn: Any, *args: Any, **keywords: Any) -> None:
        super().__init__([create_env_fn], *args, **keywords)


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


_STAND_INS = SimpleNamespace(
    AsyncCollector=AsyncCollector,
    MultiCollector=MultiCollectorClass,
    SyncDataCollector=Collector,
    aSyncDataCollector=AsyncCollector,
    MultiSyncDataCollector=collectors.MultiSyncCollector,
    MultiaSyncDataCollector=MultiAsyncCollector,
)
_HOMES = _STAND_INS, collectors, evaluators, weight_update
TABLE: Table = {module: ours(names, *_HOMES) for module, names in tables(__file__)["names"].items()}
"""Names that TorchRL had once are here too, and modules that not every version has."""

GONE = frozenset(name for names in TABLE.values() for name in names if "DataCollector" in name)
"""Names that TorchRL had once: whoever imports them can do so only here."""


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
        "preemptive_threshold": _at("_request.options.preemptive_threshold"),
        "interruptor": None,
    },
}
"""What TorchRL's own tests read of a collector that is no part of ours."""
