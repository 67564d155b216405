"""Each public argument of `Collector` lands in exactly one option field, with the same default."""

import dataclasses
import inspect
from dataclasses import MISSING, fields, is_dataclass

import pytest
import torch
from collector_toys import Always, Memory

from swath import Collector, ExplorationType
from swath.collect.making.devices import Devices
from swath.collect.making.policy_request import PolicyRequest
from swath.collectors import collector as face
from swath.collectors.assembly import CollectionRequest
from swath.collectors.checks import Unserved
from swath.options import Budget, Entries, EpisodeRules, Faults, Hooks, Trajectories
from swath.rollout.hosts.sources import Source


class Assembled(Exception):
    """Stands in for building anything."""


class Stop:
    def collection_stopped(self):
        return False


def hook(*_):
    """A hook."""


CPU = torch.device("cpu")
STOP, BUFFER, POLICY = Stop(), Memory(), Always()

TABLE = {
    # argument: (value, where it lands, what is there then)
    "create_env_fn": ("Pendulum-v1", "source.env", "Pendulum-v1"),
    "policy": (POLICY, "policy.policy", POLICY),
    "policy_factory": (Always, "policy.factory", Always),
    "frames_per_batch": (20, "budget.frames_per_batch", 20),
    "total_frames": (100, "budget.total_frames", 100),
    "envs_per_worker": (3, "source.copies", 3),
    "create_env_kwargs": ({"x": 1}, "source.kwargs", {"x": 1}),
    "seed": (4, "seed", 4),
    "device": ("cpu", "devices.common", CPU),
    "storing_device": ("cpu", "devices.storing", CPU),
    "env_device": ("cpu", "devices.env", CPU),
    "policy_device": ("cpu", "devices.policy", CPU),
    "max_frames_per_traj": (5, "episodes.max_frames", 5),
    "init_random_frames": (6, "budget.init_random_frames", 6),
    "reset_at_each_iter": (True, "episodes.reset_at_each_iter", True),
    "set_truncated": (True, "episodes.set_truncated", True),
    "split_trajs": (True, "trajectories.split", True),
    "trajs_per_batch": (2, "trajectories.per_batch", 2),
    "traj_format": ("cat", "trajectories.layout", "cat"),
    "trajs_per_write": (2, "trajectories.per_write", 2),
    "replay_buffer": (BUFFER, "buffer", BUFFER),
    "postproc": (hook, "hooks.postproc", hook),
    "pre_collect_hook": (hook, "hooks.before", hook),
    "post_collect_hook": (hook, "hooks.after", hook),
    "exploration_type": ("mean", "policy.exploration", ExplorationType.MEAN),
    "trust_policy": (True, "policy.trust", True),
    "compile_policy": (True, "policy.compile", True),
    "cudagraph_policy": (True, "policy.cudagraph", True),
    "auto_register_policy_transforms": (False, "policy.recurrent", False),
    "compact_obs": (True, "entries.compact_obs", True),
    "track_policy_version": (object(), "entries.track_version", True),
    "track_traj_ids": (False, "entries.track_ids", False),
    "worker_idx": (7, "worker", 7),
    "interruptor": (STOP, "stopped", STOP.collection_stopped),
    "on_env_error": ("reset", "faults.on_env_error", "reset"),
    "check_finite": (True, "faults.check_finite", True),
}
BESIDE = {
    "trajs_per_write": {"trajs_per_batch": 1, "replay_buffer": BUFFER},
    "traj_format": {"trajs_per_batch": 1},
}
"""What an argument needs beside it."""

DERIVED = {"device": {"devices.policy", "devices.storing"}, "storing_device": set()}
"""Fields that follow from an argument which has a field of its own."""

HELD = {"no_cuda_sync", "backend", "progress"}
"""Without a field: copies here wait for their data; another backend builds another class; who looks changes nothing."""

WEIGHTS = {"weight_updater", "weight_sync_schemes", "weight_recv_schemes"}
"""Taken up by the collector itself when all else is built; the second is for collectors with many workers."""

PUBLIC = {
    name: parameter
    for name, parameter in inspect.signature(Collector).parameters.items()
    if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
}


@pytest.fixture
def requested(monkeypatch):
    """What a set of arguments asks of the layers below."""

    def ask(**arguments):
        caught = []

        def assemble(request):
            caught.append(request)
            raise Assembled

        monkeypatch.setattr(face, "assemble", assemble)
        with pytest.raises(Assembled):
            Collector(**{"create_env_fn": "CartPole-v1", "frames_per_batch": 10, **arguments})
        return flat(caught[0])

    return ask


def flat(options, prefix=""):
    found = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            found |= flat(value, f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = value
    return found


def test_every_public_argument_is_in_the_table():
    unserved = {field.name for field in fields(Unserved)}
    assert set(PUBLIC) == set(TABLE) | unserved | HELD | WEIGHTS
    assert not set(TABLE) & unserved


@pytest.mark.parametrize("name", TABLE)
def test_an_argument_lands_in_one_field_and_nowhere_else(name, requested):
    value, where, there = TABLE[name]
    beside = BESIDE.get(name, {})
    before, after = requested(**beside), requested(**beside, **{name: value})
    changed = {field for field in before if before[field] != after[field]}
    assert changed - DERIVED.get(name, set()) == {where}
    assert after[where] == there


def test_no_two_arguments_share_a_field():
    places = [where for _, where, _ in TABLE.values()]
    assert len(set(places)) == len(places)


def test_every_field_has_an_argument(requested):
    assert set(requested()) - {"source.copies_name"} == {where for _, where, _ in TABLE.values()}


def test_the_defaults_are_those_of_the_options(requested):
    groups = {
        "source": Source("CartPole-v1"),
        "policy": PolicyRequest(),
        "devices": Devices(),
        "budget": Budget(10),
        "episodes": EpisodeRules(),
        "entries": Entries(),
        "trajectories": Trajectories(),
        "faults": Faults(),
        "hooks": Hooks(),
    }
    defaults = {f"{name}.{key}": value for name, group in groups.items() for key, value in flat(group).items()}
    alone = {field.name: field.default for field in fields(CollectionRequest) if field.default is not MISSING}
    assert requested() == defaults | alone


@pytest.mark.parametrize("field", fields(Unserved), ids=lambda field: field.name)
def test_the_defaults_of_what_is_not_served_are_the_same(field):
    assert PUBLIC[field.name].default == field.default


def test_option_groups_are_frozen():
    for group in (Budget(1), EpisodeRules(), Entries(), Trajectories(), Faults(), Hooks(), PolicyRequest(), Devices()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(group, fields(group)[0].name, None)


def test_only_env_and_policy_are_positional():
    positional = [name for name, parameter in PUBLIC.items() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert positional == ["create_env_fn", "policy"]


def test_the_peers_spelling_of_no_end_is_one(requested):
    assert requested(total_frames=None) == requested(total_frames=-1) == requested(total_frames=-7)
    assert requested(max_frames_per_traj=0) == requested(max_frames_per_traj=-1) == requested()
    assert requested(init_random_frames=0) == requested(init_random_frames=-3) == requested()
