"""Envs, policies, buffers and weights for tests of collectors, in this process and with many workers."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from gymnasium import spaces
from torch import nn

import ray_cluster
from swath import Collector, MultiAsyncCollector, MultiSyncCollector, Restarts, WeightUpdaterBase
from swath.testing import ENDLESS, Counting, CountingEnv, CountingEnvs, Fault, Script
from toys import DEADLINE_S, Gate, end

PLACES = ["inline", "thread", "process"]
EVERYWHERE = [*PLACES, "ray"]
KINDS = {"sync": MultiSyncCollector, "async": MultiAsyncCollector}
LONG = Counting(script=Script(lengths=(ENDLESS,)))
WIDE = Counting(action_space=spaces.Discrete(1000), script=Script(lengths=(ENDLESS,)))
"""Every level is an action."""

AT_ONCE = Restarts(5, backoff_s=0.0)
"""Workers are replaced without delay."""

IDS, VERSION, MASK = ("collector", "traj_ids"), ("collector", "policy_version"), ("collector", "mask")


def counting(*lengths, **like):
    """Return a factory of counting envs whose episodes have these lengths in turn, and terminate."""
    return Counting(script=Script(lengths=lengths or (3, 5, 1, 4), endings=("terminated",)), **like)


def make_collector(env=None, policy=None, **options):
    """Build a collector of 2 × 5 frames of counting envs, unless the options say otherwise."""
    if env is None:
        env = CountingEnvs(counting())
        options.setdefault("envs_per_worker", 2)
    options.setdefault("frames_per_batch", 10)
    return Collector(env, policy, **options)


def first_batch(*args, **options):
    with make_collector(*args, **options) as collector:
        return collector.next()


class Always(nn.Module):
    """Answers with one number, the value of its only parameter."""

    def __init__(self, action=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float(action)))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, observation):
        return torch.full(observation.shape[:-1], 1, dtype=torch.int64) * self.weight.detach().long()


class WithValue(nn.Module):
    """Answers with an action, its log-probability and a value, drawn from torch's generator."""

    in_keys = ("observation",)
    out_keys = ("action", "action_log_prob", "state_value")

    def forward(self, observation):
        value = observation.sum(-1, keepdim=True) + 1
        return torch.randint(3, observation.shape[:-1]), torch.full(observation.shape[:-1], -1.0), value


class Mode(nn.Module):
    """Answers with the number of the exploration type."""

    def forward(self, observation, exploration_type=None):
        self.told = exploration_type
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)


class Counts(nn.Module):
    """A recurrent policy that counts the steps of each episode, and acts on is_init."""

    in_keys = ("observation", "hidden", "is_init")
    out_keys = ("action", ("next", "hidden"))

    def forward(self, observation, hidden, is_init):
        if hidden is None:
            hidden = torch.zeros(*observation.shape[:-1], 1)
        return torch.zeros(observation.shape[:-1], dtype=torch.int64), hidden + 1


class Memory:
    """A replay buffer: a list."""

    def __init__(self, raises_at=None):
        self.written, self.raises_at = [], raises_at

    def extend(self, td):
        if self.raises_at == len(self.written):
            self.raises_at = None
            raise OSError("disk full")
        self.written.append(td)

    @property
    def frames(self):
        return sum(td.numel() for td in self.written)


class Signalling(Memory):
    """A replay buffer whose writes need permission; tests can wait until it has a number of entries."""

    def __init__(self, permits=10**9):
        super().__init__()
        self.change = threading.Condition()
        self.permits, self.offered = permits, 0

    def extend(self, td):
        with self.change:
            self.offered += 1
            self.change.notify_all()
            assert self.change.wait_for(lambda: self.permits > 0, DEADLINE_S), "no permission came"
            self.permits -= 1
            super().extend(td)
            self.change.notify_all()

    def permit(self, n):
        with self.change:
            self.permits += n
            self.change.notify_all()

    def wait_for(self, n):
        with self.change:
            assert self.change.wait_for(lambda: len(self.written) >= n, DEADLINE_S), "nothing was written"

    def wait_for_offer(self, n):
        with self.change:
            assert self.change.wait_for(lambda: self.offered >= n, DEADLINE_S), "nothing is to be written"


class InThread:
    """Runs a function in a thread and keeps its result or exception."""

    def __init__(self, function, *args):
        self._function, self._args, self.value, self.error = function, args, None, None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.value = self._function(*self._args)
        except BaseException as error:
            self.error = error

    def join(self):
        end(self._thread)
        return self


def raising(**faults):
    """Return two counting envs whose env 1 raises at step 4 of its first episode, or as the faults say."""
    fault = Fault(**{"kind": "raise", "episode": 0, "step": 4, **faults})
    return CountingEnvs(LONG, faults={1: [fault]})


# ---- many workers


def numbered(n_workers=2, num_envs=2, counting=LONG):
    """Return one source of counting envs per worker, with consecutive numbers."""
    return [CountingEnvs(counting, first=worker * num_envs) for worker in range(n_workers)]


def fleet(kind="sync", sources=None, policy=None, **options):
    """Build a collector of two workers with two envs each and shares of 5 steps, unless the options say otherwise."""
    options.setdefault("frames_per_batch", 20 if kind == "sync" else 10)
    options.setdefault("envs_per_worker", 2)
    options.setdefault("restarts", AT_ONCE)
    if options.get("backend") == "ray":
        del options["backend"]
        return ray_cluster.collector(sources or numbered(), policy, sync=kind == "sync", **options)
    return KINDS[kind](numbered() if sources is None else sources, policy, **options)


def drawn(collector, n):
    return [collector.next() for _ in range(n)]


def drawn_until(collector, is_enough):
    """Draw batches until `is_enough(batch)` is true, and return them."""
    batches = [collector.next()]
    while not is_enough(batches[-1]):
        batches.append(collector.next())
    return batches


def made_by(batch):
    """Return the workers whose frames are in a batch, in order of rows."""
    ids = batch[IDS].reshape(-1, batch.shape[-1])
    return [int(row.max()) >> 47 for row in ids]


class Held(CountingEnv):
    """A counting env whose step number `at` goes through a gate, so that a test can act meanwhile."""

    def __init__(self, gate: Gate, at=3, number=0, counting=LONG):
        super().__init__(number, counting)
        self._gate, self._at, self._made = gate, at, 0

    def step(self, action):
        self._made += 1
        if self._made == self._at:
            self._gate.go_through()
        return super().step(action)


class Notebook:
    """A file to which workers in any process add lines."""

    def __init__(self, path: Path):
        self.path = path

    def __call__(self, *words):
        with self.path.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    @property
    def lines(self):
        return self.path.read_text().splitlines() if self.path.exists() else []


# ---- weights


PATH = "policy.nets[1]"
"""Path of a model in `TwoNets`."""


def counting_env():
    """Build a counting env in the worker."""
    return CountingEnv(0, LONG)


def multi(policy=None, kind=MultiSyncCollector, **options):
    """Build two workers with one env each and shares of two frames, in this process by default."""
    options.setdefault("frames_per_batch", 4 if kind is MultiSyncCollector else 2)
    options.setdefault("backend", "inline")
    return kind([counting_env] * options.pop("workers", 2), policy, **options)


def multi_async(policy=None, **options):
    """Build the asynchronous collector of `multi`."""
    return multi(policy, MultiAsyncCollector, **options)


EITHER = [make_collector, multi]
"""A collector in this process and one with many workers."""


def weights(value):
    """Return weights of an `Always` that answers with this number."""
    return {"weight": torch.tensor(float(value))}


def acted(collector):
    """Return action and version of the next batch, by worker."""
    batch = collector.next()
    actions, versions = batch["action"], batch[VERSION]
    if actions.dim() == 1:
        actions, versions = actions[None], versions[None]
    rows = [(row.unique().tolist(), version.unique().tolist()) for row, version in zip(actions, versions, strict=True)]
    assert all(len(action) == len(version) == 1 for action, version in rows), f"a fragment mixes {rows}"
    return [(action[0], version[0]) for action, version in rows]


def shown(collector):
    """Return the actions and the versions of the next batch."""
    batch = collector.next()
    return batch["action"].unique().tolist(), batch[VERSION].unique().tolist()


class TwoNets(Always):
    """Has two further models."""

    def __init__(self):
        super().__init__(1)
        self.nets = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])


class Recording(WeightUpdaterBase):
    """Publishes for each of its workers and keeps a list of the calls."""

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
