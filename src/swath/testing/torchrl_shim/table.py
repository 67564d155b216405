"""What of ours takes the place of what in TorchRL, and where."""

from __future__ import annotations

from tensordict.nn import TensorDictModule

from swath.collectors.base import BaseCollector
from swath.collectors.collector import Collector
from swath.collectors.many import ManyWorkers
from swath.collectors.multi import MultiAsyncCollector, MultiSyncCollector
from swath.collectors.ray_collector import RayCollector
from swath.evaluators import Evaluator, RayEvalWorker
from swath.keys import COLLECTOR, NEXT
from swath.rollout.episodes.nstep import MultiStep
from swath.rollout.episodes.reshape import split_trajectories
from swath.rollout.policies.binding import asked_for
from swath.testing.swapping import Lent, Table
from swath.testing.torchrl_shim.stand_ins import AsyncCollector, MultiCollectorClass
from swath.weight_update import (
    MultiProcessWeightSyncScheme,
    NoWeightSyncScheme,
    RayWeightSyncScheme,
    SharedMemWeightSyncScheme,
    WeightStrategy,
    WeightSyncScheme,
)
from swath.weights.updaters import (
    MultiProcessedWeightUpdater,
    RayWeightUpdater,
    RemoteModuleWeightUpdater,
    VanillaWeightUpdater,
    WeightUpdaterBase,
)

_COLLECTORS = {
    "BaseCollector": BaseCollector,
    "Collector": Collector,
    "AsyncCollector": AsyncCollector,
    "MultiCollector": MultiCollectorClass,
    "MultiSyncCollector": MultiSyncCollector,
    "MultiAsyncCollector": MultiAsyncCollector,
    "DataCollectorBase": BaseCollector,
    "SyncDataCollector": Collector,
    "aSyncDataCollector": AsyncCollector,
    "MultiSyncDataCollector": MultiSyncCollector,
    "MultiaSyncDataCollector": MultiAsyncCollector,
}
GONE = frozenset(name for name in _COLLECTORS if "DataCollector" in name)
"""Names that TorchRL had once: whoever imports them can do so only here."""

_UPDATERS = {
    "WeightUpdaterBase": WeightUpdaterBase,
    "LocalWeightsUpdaterBase": WeightUpdaterBase,
    "RemoteWeightsUpdaterBase": WeightUpdaterBase,
    "VanillaWeightUpdater": VanillaWeightUpdater,
    "MultiProcessedWeightUpdater": MultiProcessedWeightUpdater,
    "RayWeightUpdater": RayWeightUpdater,
    "RemoteModuleWeightUpdater": RemoteModuleWeightUpdater,
}
_SCHEMES = {
    "WeightSyncScheme": WeightSyncScheme,
    "WeightStrategy": WeightStrategy,
    "RayWeightSyncScheme": RayWeightSyncScheme,
    "MultiProcessWeightSyncScheme": MultiProcessWeightSyncScheme,
    "MultiProcessedWeightSyncScheme": MultiProcessWeightSyncScheme,
    "SharedMemWeightSyncScheme": SharedMemWeightSyncScheme,
    "NoWeightSyncScheme": NoWeightSyncScheme,
}
_N_STEP = {"MultiStep": MultiStep}

TABLE: Table = {
    "torchrl.collectors": {**_COLLECTORS, **_UPDATERS, "Evaluator": Evaluator},
    "torchrl.collectors.collectors": _COLLECTORS,
    "torchrl.collectors.distributed": {"RayCollector": RayCollector, "RayEvalWorker": RayEvalWorker},
    "torchrl.collectors.distributed.ray": {"RayCollector": RayCollector},
    "torchrl.collectors.distributed.ray_eval_worker": {"RayEvalWorker": RayEvalWorker},
    "torchrl.collectors.weight_update": _UPDATERS,
    "torchrl.collectors.utils": {"split_trajectories": split_trajectories},
    "torchrl.weight_update": _SCHEMES,
    "torchrl.weight_update.weight_sync_schemes": _SCHEMES,
    "torchrl.data": _N_STEP,
    "torchrl.data.postprocs": _N_STEP,
    "torchrl.data.postprocs.postprocs": _N_STEP,
    "torchrl.collectors._base": {"BaseCollector": BaseCollector},
    "torchrl.collectors._single": {"Collector": Collector},
    "torchrl.collectors._single_async": {"AsyncCollector": AsyncCollector},
    "torchrl.collectors._multi_base": {"MultiCollector": MultiCollectorClass},
    "torchrl.collectors._multi_sync": {"MultiSyncCollector": MultiSyncCollector},
    "torchrl.collectors._multi_async": {"MultiAsyncCollector": MultiAsyncCollector},
    "torchrl.collectors._evaluator": {"Evaluator": Evaluator},
    "torchrl.weight_update._ray": {"RayWeightSyncScheme": RayWeightSyncScheme},
    "torchrl.weight_update._mp": {"MultiProcessWeightSyncScheme": MultiProcessWeightSyncScheme},
    "torchrl.weight_update._shared": {"SharedMemWeightSyncScheme": SharedMemWeightSyncScheme},
    "torchrl.weight_update._noupdate": {"NoWeightSyncScheme": NoWeightSyncScheme},
}
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
