"""A stand-in for `RolloutWorker`, quick to build, that does what a script says; and sets of such workers."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from swath.rollout_workers import AlgorithmConfig, MeanStdFilter, SampleBatch
from swath.rollout_workers.filters import copies_of, rebase_all
from swath.rollout_workers.worker_set.worker_set import WorkerSet
from toys import Gate

STEPS = 3
"""Of a fragment."""


class Broken(Exception):
    """What an env raises."""


@dataclass(frozen=True)
class Play:
    """What happens when workers sample: `acts` by (worker, life, number of the sample); `builds` by (worker, life)."""

    acts: dict[Any, Any] = field(default_factory=dict)
    builds: dict[Any, Any] = field(default_factory=dict)

    def __call__(self, context):
        return self


def act(what):
    """Do it: "kill", "exit", "raise", or go through a gate."""
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        raise SystemExit(3)
    elif what == "raise":
        raise Broken("an env raised")
    elif isinstance(what, Gate):
        what.go_through()


class ToyPolicy:
    """Has one weight."""

    observation_space = action_space = None
    config: dict[str, Any] = {}

    def __init__(self, value=0.0):
        self.weights = {"w": np.full(2, value, np.float32)}

    def get_state(self):
        return {"weights": dict(self.weights)}


class Refusing(ToyPolicy):
    def __init__(self, value=0.0):
        raise Broken("a policy raised")


class ToyWorker:
    """See `RolloutWorker`; every observation that it makes is its id."""

    def __init__(self, *, env_creator, worker_index, num_workers, recreated_worker, config, log_dir, spaces, **rest):
        self.life, self.worker_index, self.num_workers = int(recreated_worker), worker_index, num_workers
        self.recreated_worker, self.config, self.log_dir, self.spaces = bool(recreated_worker), config, log_dir, spaces
        self.rest = rest
        self.play = env_creator(None)
        act(self.play.builds.get((worker_index, self.life)))
        self.policy_map = {"default_policy": ToyPolicy(worker_index)}
        self.filters = {"default_policy": MeanStdFilter(())}
        self.global_vars = {}
        self.policy_version, self.weights_seq_no, self.sampled, self.stopped = 0, None, 0, False
        self.policy_mapping_fn = self.is_policy_to_train = None
        self.calls = []

    @property
    def whoami(self):
        return self.worker_index, self.life

    def sample(self):
        self.sampled += 1
        act(self.play.acts.get((self.worker_index, self.life, self.sampled)))
        seen = np.full(STEPS, self.worker_index, np.float32)
        self.filters["default_policy"](seen)
        rows = np.arange(STEPS)
        return SampleBatch(
            obs=seen,
            t=rows + STEPS * (self.sampled - 1),
            life=np.full(STEPS, self.life),
            policy_version=np.full(STEPS, self.policy_version),
            seen=np.full(STEPS, self.filters["default_policy"].rs.n),
        )

    def apply(self, func, *args, **kwargs):
        return getattr(self, func)(*args, **kwargs) if isinstance(func, str) else func(self, *args, **kwargs)

    def named(self, greeting="hello"):
        return f"{greeting} {self.worker_index}"

    def get_weights(self, policies=None):
        wanted = self.policy_map if policies is None else policies
        return {pid: dict(self.policy_map[pid].weights) for pid in wanted}

    def set_weights(self, weights, global_vars=None, weights_seq_no=None):
        for pid, given in weights.items():
            if given["w"].shape != (2,):
                raise ValueError(f"w of {pid} has shape {given['w'].shape}")
            self.policy_map[pid].weights = given
        self.weights_seq_no = weights_seq_no
        self.policy_version = max(self.policy_version + 1, weights_seq_no or 0)
        self.calls.append(("set_weights", sorted(weights), weights_seq_no))
        if global_vars:
            self.set_global_vars(global_vars)

    def set_global_vars(self, global_vars, policy_ids=None):
        self.global_vars.update(global_vars)

    def get_filters(self, flush_after=False):
        return copies_of(self.filters, flush_after=flush_after)

    def sync_filters(self, new):
        rebase_all(self.filters, new)

    def add_policy(self, policy_id, policy_cls=None, policy=None, *, policy_state=None, **said):
        self.policy_map[policy_id] = policy_cls() if policy is None else policy
        if policy_state:
            self.policy_map[policy_id].weights = policy_state["weights"]
        self._hear(**said)

    def remove_policy(self, *, policy_id, policy_mapping_fn=None, policies_to_train=None):
        del self.policy_map[policy_id]
        self._hear(policy_mapping_fn, policies_to_train)

    def _hear(self, policy_mapping_fn=None, policies_to_train=None, **_):
        self.set_policy_mapping_fn(policy_mapping_fn)
        if policies_to_train is not None:
            self.set_is_policy_to_train(policies_to_train)

    def set_policy_mapping_fn(self, function=None):
        self.policy_mapping_fn = function or self.policy_mapping_fn

    def set_is_policy_to_train(self, which):
        self.is_policy_to_train = (lambda pid, batch=None: pid in which) if not callable(which) else which

    def get_policies_to_train(self, batch=None):
        asked = self.is_policy_to_train
        return {pid for pid in self.policy_map if asked is None or asked(pid, batch)}

    def get_spaces(self):
        return {"default_policy": (f"obs of {self.worker_index}", "act"), "__env__": ("obs", "act")}

    def foreach_env(self, func):
        return [func(SimpleNamespace(number=k)) for k in range(2)]

    def foreach_env_with_context(self, func):
        return [func(SimpleNamespace(number=k), self.worker_index) for k in range(2)]

    def foreach_policy(self, func):
        return [func(policy, pid) for pid, policy in self.policy_map.items()]

    foreach_policy_to_train = foreach_policy

    def assert_healthy(self):
        assert not self.stopped

    def stop(self):
        if self.log_dir is not None:
            Path(self.log_dir).mkdir(parents=True, exist_ok=True)
            (Path(self.log_dir) / "stopped").touch()
        self.stopped = True


class ToySet(WorkerSet):
    worker_class = ToyWorker


def config(**settings):
    """Quick to restart."""
    own = AlgorithmConfig().fault_tolerance(delay_between_env_runner_restarts_s=0.0)
    return own.env_runners(rollout_fragment_length=STEPS).update_from_dict(settings)


def rows(batch):
    """(worker, life, t) of each row."""
    return list(zip(batch["obs"].astype(int).tolist(), batch["life"].tolist(), batch["t"].tolist(), strict=True))


def workers_of(batch):
    """Whose fragments are in it, in order."""
    return [int(worker) for worker in batch["obs"][::STEPS]]
