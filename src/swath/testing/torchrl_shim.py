"""A pytest plugin that runs tests written for TorchRL's collectors on ours: `pytest -p swath.testing.torchrl_shim`.

    pytest -p … ──▶ our names in torchrl.collectors, … ──▶ conftests and tests are imported ──▶ run ──▶ report, put back

Names are attributes of TorchRL's own modules, so that `from torchrl.collectors import Collector` gives ours. Names that
we do not have stay TorchRL's. At the end of the run a table says which was which, and how often ours were used.
TorchRL's own tests look at a few attributes more, most of them private; our collector has them while they run.
"""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter
from tensordict.nn import TensorDictModule

from swath.collectors.base import BaseCollector
from swath.collectors.collector import Collector
from swath.collectors.dispatch import MultiCollector
from swath.collectors.multi import MultiAsyncCollector, MultiSyncCollector
from swath.collectors.ray_collector import RayCollector
from swath.collectors.ray_replay_buffer import RayReplayBuffer
from swath.collectors.updaters.base import WeightUpdaterBase
from swath.collectors.updaters.in_place import MultiProcessedWeightUpdater, VanillaWeightUpdater
from swath.collectors.updaters.ray_updater import RayWeightUpdater
from swath.collectors.updaters.remote_module import RemoteModuleWeightUpdater
from swath.evaluators import Evaluator, RayEvalWorker
from swath.keys import COLLECTOR, NEXT
from swath.rollout.episodes.nstep import MultiStep
from swath.rollout.episodes.reshape import split_trajectories
from swath.testing.swapping import Lent, Swap, Table, require_swapped
from swath.weight_update import (
    MultiProcessWeightSyncScheme,
    NoWeightSyncScheme,
    RayWeightSyncScheme,
    SharedMemWeightSyncScheme,
    WeightStrategy,
    WeightSyncScheme,
)

_UPDATERS = {
    "WeightUpdaterBase": WeightUpdaterBase,
    "LocalWeightsUpdaterBase": WeightUpdaterBase,
    "RemoteWeightsUpdaterBase": WeightUpdaterBase,
    "VanillaWeightUpdater": VanillaWeightUpdater,
    "MultiProcessedWeightUpdater": MultiProcessedWeightUpdater,
    "RayWeightUpdater": RayWeightUpdater,
    "RemoteModuleWeightUpdater": RemoteModuleWeightUpdater,
}
_COLLECTORS = {
    "Collector": Collector,
    "SyncDataCollector": Collector,
    "BaseCollector": BaseCollector,
    "DataCollectorBase": BaseCollector,
    "MultiCollector": MultiCollector,
    "MultiSyncCollector": MultiSyncCollector,
    "MultiSyncDataCollector": MultiSyncCollector,
    "MultiAsyncCollector": MultiAsyncCollector,
    "MultiaSyncDataCollector": MultiAsyncCollector,
    "Evaluator": Evaluator,
    **_UPDATERS,
}
_SCHEMES = {
    "WeightSyncScheme": WeightSyncScheme,
    "WeightStrategy": WeightStrategy,
    "RayWeightSyncScheme": RayWeightSyncScheme,
    "MultiProcessWeightSyncScheme": MultiProcessWeightSyncScheme,
    "SharedMemWeightSyncScheme": SharedMemWeightSyncScheme,
    "NoWeightSyncScheme": NoWeightSyncScheme,
}

TABLE: Table = {
    "torchrl.collectors": _COLLECTORS,
    "torchrl.collectors.collectors": _COLLECTORS,
    "torchrl.collectors.distributed": {"RayCollector": RayCollector, "RayEvalWorker": RayEvalWorker},
    "torchrl.collectors.distributed.ray": {"RayCollector": RayCollector},
    "torchrl.collectors.weight_update": _UPDATERS,
    "torchrl.collectors.utils": {"split_trajectories": split_trajectories},
    "torchrl.weight_update": _SCHEMES,
    "torchrl.weight_update.weight_sync_schemes": _SCHEMES,
    "torchrl.data": {"MultiStep": MultiStep, "RayReplayBuffer": RayReplayBuffer},
    "torchrl.data.postprocs": {"MultiStep": MultiStep},
    "torchrl.data.postprocs.postprocs": {"MultiStep": MultiStep},
    "torchrl.data.replay_buffers": {"RayReplayBuffer": RayReplayBuffer},
}
"""Old names of TorchRL's are here too: those that the installed version lacks are passed over."""


def _wrapped(collector: Collector) -> TensorDictModule:
    """The policy as TorchRL shows one that it has wrapped: with the names that its outputs have got."""
    env, policy = collector.env, collector.policy
    theirs = {NEXT, COLLECTOR, *env.observation_keys, *env.state_keys, *env.done_keys}
    outputs = [key for key, _ in collector.fake_tensordict().items() if key not in theirs]
    return TensorDictModule(policy, in_keys=env.observation_keys, out_keys=outputs)


LENT: Lent = {
    Collector: {
        "_frames": property(lambda collector: collector.stats()["frames"]),
        "_iter": property(lambda collector: collector.stats()["batches"] - 1),
        "_use_buffers": True,
        "_wrapped_policy": property(_wrapped),
        "compiled_policy": property(lambda collector: collector.get_distant_attr("_acting.compiled")),
        "cudagraphed_policy": property(lambda collector: collector.get_distant_attr("_acting.captured")),
    }
}
"""What TorchRL's own tests read of a collector that is no part of ours."""

ABOUT_COLLECTING = (
    "torchrl.collectors",
    "torchrl.collectors.distributed",
    "torchrl.collectors.utils",
    "torchrl.weight_update",
    "torchrl.data.postprocs",
)
"""Modules whose other names the report lists; `torchrl.data` has hundreds that are no concern of ours."""

_SWAP = pytest.StashKey[Swap]()
_MISSING = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Replace the names before anything of the user's is imported."""
    swap = Swap(TABLE, LENT)
    try:
        swap.apply()
    except ModuleNotFoundError as error:
        early_config.stash[_MISSING] = str(error)
    else:
        early_config.stash[_SWAP] = swap


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run without TorchRL.

    Raises:
        pytest.UsageError: it cannot be imported, or the plugin was named too late.
    """
    missing, swapped = config.stash.get(_MISSING, None), _SWAP in config.stash
    require_swapped("swath.testing.torchrl_shim", "TorchRL", "torchrl", missing, swapped=swapped)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put TorchRL's names back."""
    if _SWAP in config.stash:
        config.stash[_SWAP].undo()


def pytest_report_header() -> str:
    """Say that the tests do not run on what they name."""
    return "swath: in the place of TorchRL's collectors; a table at the end says which names"


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Which names were ours and how often each was used, and which stayed TorchRL's."""
    swap = config.stash[_SWAP]
    terminalreporter.section("swath in the place of TorchRL")
    for name in swap.swapped():
        uses = "a base class, not counted" if name.uses is None else f"used {name.uses} times"
        terminalreporter.write_line(f"{name.module}.{name.name} was {name.ours}: {uses}")
    kept = [f"{module}.{name}" for module, name in swap.kept() if module in ABOUT_COLLECTING]
    terminalreporter.write_line(f"still TorchRL's: {', '.join(kept) or 'nothing'}")
