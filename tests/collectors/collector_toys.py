"""Envs, policies and buffers for tests of collectors."""

from __future__ import annotations

import threading

import torch
from torch import nn

from swath import Collector
from swath.testing import Counting, CountingEnv, CountingEnvs, Fault, Script

LONG = Counting(script=Script(lengths=(1000,)))


STATS = {
    "frames", "batches", "requested_frames_per_batch", "policy_version", "policy_version_min", "restarts",
    "workers_lost", "late", "fragments_lost", "env_errors", "frames_dropped", "batches_dropped", "batches_overdue",
    "frames_discarded", "episodes", "fps", "seconds", "seconds_waiting", "staleness", "running",
}  # fmt: skip
"""Keys that are always there."""


def counting(*lengths, **like):
    """Counting envs whose episodes last so long in turn, and terminate."""
    return Counting(script=Script(lengths=lengths or (3, 5, 1, 4), endings=("terminated",)), **like)


def collector(env=None, policy=None, **options):
    """A collector of 2 × 5 frames of counting envs, unless asked otherwise."""
    if env is None:
        env = CountingEnvs(counting())
        options.setdefault("envs_per_worker", 2)
    options.setdefault("frames_per_batch", 10)
    return Collector(env, policy, **options)


def first_batch(*args, **options):
    with collector(*args, **options) as made:
        return made.next()


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
    """Answers with the number of the exploration type it was told."""

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
    """A replay buffer that tells when it has so many entries, and waits for permission to take another."""

    def __init__(self, permits=10**9):
        super().__init__()
        self.change = threading.Condition()
        self.permits, self.offered = permits, 0

    def extend(self, td):
        with self.change:
            self.offered += 1
            self.change.notify_all()
            assert self.change.wait_for(lambda: self.permits > 0, 60)
            self.permits -= 1
            super().extend(td)
            self.change.notify_all()

    def permit(self, n):
        with self.change:
            self.permits += n
            self.change.notify_all()

    def wait_for(self, n):
        with self.change:
            assert self.change.wait_for(lambda: len(self.written) >= n, 60), "nothing was written"

    def wait_for_offer(self, n):
        with self.change:
            assert self.change.wait_for(lambda: self.offered >= n, 60), "nothing is to be written"


class Stepping(CountingEnv):
    """A counting env whose step number `at` waits until it is released, so that a test can act meanwhile."""

    def __init__(self, at=3, counting=LONG):
        super().__init__(0, counting)
        self.at, self.made = at, 0
        self.inside, self.released = threading.Event(), threading.Event()

    def step(self, action):
        self.made += 1
        if self.made == self.at:
            self.inside.set()
            assert self.released.wait(60)
        return super().step(action)


class InThread:
    """Runs a function in a thread and keeps what it gives or raises."""

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
        self._thread.join(60)
        assert not self._thread.is_alive(), "it hangs"
        return self


def raising(**faults):
    """Two counting envs whose env 1 raises at step 4 of its first episode, or as told."""
    fault = Fault(**{"kind": "raise", "episode": 0, "step": 4, **faults})
    return CountingEnvs(LONG, faults={1: [fault]})
