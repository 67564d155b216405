"""Collectors with two workers whose actions show which weights acted."""

from __future__ import annotations

import pytest
import torch
from collector_toys import LONG, Always, collector

from swath import MultiAsyncCollector, MultiSyncCollector, WeightUpdaterBase
from swath.testing import CountingEnv

VERSION = ("collector", "policy_version")
EVERYWHERE = ("inline", "thread", "process")
PATH = "policy.nets[1]"
"""Of a model in `TwoNets`."""


def counting_env():
    """Built in the worker."""
    return CountingEnv(0, LONG)


def multi(policy=None, kind=MultiSyncCollector, **options):
    """Two workers with one env each, two frames of each in a batch; in this process unless asked otherwise."""
    options.setdefault("frames_per_batch", 4 if kind is MultiSyncCollector else 2)
    options.setdefault("backend", "inline")
    return kind([counting_env] * options.pop("workers", 2), policy, **options)


def multi_async(policy=None, **options):
    """The same, one worker after the other."""
    return multi(policy, MultiAsyncCollector, **options)


EITHER = pytest.mark.parametrize("make", [collector, multi], ids=["one worker", "many"])
"""What holds for a collector in this process and for many workers."""


def weights(value):
    """Of an `Always` that answers with this number."""
    return {"weight": torch.tensor(float(value))}


def acted(collector):
    """By worker, which action and which version the next batch shows."""
    batch = collector.next()
    actions, versions = batch["action"], batch[VERSION]
    if actions.dim() == 1:
        actions, versions = actions[None], versions[None]
    rows = [(row.unique().tolist(), version.unique().tolist()) for row, version in zip(actions, versions, strict=True)]
    assert all(len(action) == len(version) == 1 for action, version in rows), f"a fragment mixes {rows}"
    return [(action[0], version[0]) for action, version in rows]


def shown(collector):
    """Which actions and which versions the next batch shows."""
    batch = collector.next()
    return batch["action"].unique().tolist(), batch[VERSION].unique().tolist()


class TwoNets(Always):
    """Has two models more."""

    def __init__(self):
        super().__init__(1)
        self.nets = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])


class Recording(WeightUpdaterBase):
    """Publishes for each of its workers and writes down what happened, in order."""

    def __init__(self, ids=(0, 1), server=None, skipped=()):
        self.ids, self.server, self.skipped = ids, server, skipped
        self.log = []
        self.register_post_hook(lambda: self.log.append("hook"))

    def all_worker_ids(self):
        return self.ids

    def init(self, *args, **kwargs):
        self.log.append(("init", args, kwargs))

    def _get_server_weights(self):
        self.log.append("get")
        return self.server

    def _maybe_map_weights(self, policy_or_weights):
        self.log.append("map")
        return super()._maybe_map_weights(policy_or_weights)

    def _skip_update(self, worker_id):
        self.log.append(("skip", worker_id))
        return worker_id in self.skipped

    def _sync_weights_with_worker(self, *, worker_id=None, server_weights):
        self.log.append(("sync", worker_id))
        if self.collector is not None:
            self.collector.publish_weights(server_weights, worker_ids=worker_id)
