"""What stays TorchRL's in the modules where our names are put, each with the reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

_AS_IT_IS = "works with our collectors as it is"
_GROUPS = "needs process groups, RPC or Slurm; on many machines RayCollector collects"
_NO_TRANSPORTS = "there are no transports to choose: all weights travel on the collector's own channel"
NO_REASON = "nothing of ours takes the place"

ABOUT_COLLECTING = (
    "torchrl.collectors",
    "torchrl.collectors.distributed",
    "torchrl.collectors.utils",
    "torchrl.weight_update",
    "torchrl.data.postprocs",
)
"""Modules whose other names are told of; `torchrl.data` has hundreds that are no concern of ours."""


def _all(names: str, reason: str) -> Mapping[str, str]:
    return dict.fromkeys(names.split(), reason)


STAYING: Mapping[str, str] = {
    **_all("RandomPolicy DensifyReward", _AS_IT_IS),
    **_all("DistributedCollector DistributedSyncCollector DistributedWeightUpdater RPCCollector", _GROUPS),
    **_all("RPCWeightUpdater DistributedWeightSyncScheme RPCWeightSyncScheme", _GROUPS),
    **_all("DEFAULT_SLURM_CONF submitit_delayed_launcher", _GROUPS),
    **_all("DistributedTransport MPTransport RPCTransport RayTransport SharedMemTransport", _NO_TRANSPORTS),
    **_all("InitialSyncTransport TransportBackend WeightSyncBackend", _NO_TRANSPORTS),
    "AsyncBatchedCollector": "asks an inference server for actions; envs_per_worker steps many envs with one call",
    "ProfileConfig": "there is no enable_profile(); torch.profiler does it around the loop",
    "RayModuleTransformScheme": "is for transforms that are actors; others are updated by path, as 'env.transform[0]'",
}
"""By name."""


def said_of(kept: Iterable[tuple[str, str]]) -> list[str]:
    """One line per reason, with the places that stay TorchRL's because of it."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for module, name in kept:
        if module in ABOUT_COLLECTING:
            by_reason[STAYING.get(name, NO_REASON)].append(f"{module}.{name}")
    return [f"still TorchRL's: {reason}: {', '.join(places)}" for reason, places in by_reason.items()]
