"""The arguments of the collectors with many workers: their defaults, and what is refused."""

import inspect
from dataclasses import fields

import pytest
import torch
from collector_toys import LONG, Always

from plain import plain
from swath import (
    Collector,
    ExplorationType,
    MultiAsyncCollector,
    MultiSyncCollector,
    RayCollector,
    RayWeightSyncScheme,
    Restarts,
)
from swath.collectors import base
from swath.testing import CountingEnv, CountingEnvs

WEIGHTS = {"weight_updater", "weight_sync_schemes", "weight_recv_schemes"}
OURS = {"create_env_fn", "check_finite", "keep_float64", "final_observation", "info_keys", "progress", "env_processes"}
OURS |= {"step_timeout_s", "overlap"}
PEERS = {"return_same_td", "reset_when_done", "use_buffers", "extend_buffer"}


def told(observation, exploration_type=None):
    """Answers with 1 if it is to take the mean."""
    return torch.full(observation.shape[:-1], int(exploration_type is ExplorationType.MEAN))


def test_collector_kwargs_decide_where_the_argument_is_at_its_default(build):
    rows = [{"max_frames_per_traj": 5, "set_truncated": True}, {"max_frames_per_traj": 4, "exploration_type": "mean"}]
    batch = build(policy=told, collector_kwargs=rows).next()
    assert batch["next", "step_count"].amax((1, 2, 3)).tolist() == [5, 4]
    assert batch["next", "truncated"][:, 0, :, 0].nonzero().tolist() == [[0, 4], [0, 5], [1, 3]]
    assert [row["action"].unique().tolist() for row in batch] == [[0], [1]]


def test_an_argument_and_another_value_in_collector_kwargs_are_refused(build):
    build(max_frames_per_traj=5, collector_kwargs={"max_frames_per_traj": 5})
    with pytest.raises(ValueError, match=r"max_frames_per_traj=5 here, but 6 in collector_kwargs; give one of them"):
        build(max_frames_per_traj=5, collector_kwargs={"max_frames_per_traj": 6})
    with pytest.raises(TypeError, match="unexpected keyword argument 'set_truncated'"):
        build(set_truncated=True)


REQUIRED = inspect.Parameter.empty
DEFAULTS = {
    # argument: (multi, Ray); `REQUIRED` for none
    "policy": (None, None),
    "policy_factory": (None, None),
    "trust_policy": (None, None),
    "plans": (True, True),
    "frames_per_batch": (REQUIRED, REQUIRED),
    "total_frames": (-1, -1),
    **dict.fromkeys(("device", "storing_device", "env_device", "policy_device", "create_env_kwargs"), (None, None)),
    "max_frames_per_traj": (None, -1),
    "init_random_frames": (None, -1),
    "reset_at_each_iter": (False, False),
    **dict.fromkeys(("postproc", "pre_collect_hook", "post_collect_hook", "replay_buffer"), (None, None)),
    "split_trajs": (None, False),
    "exploration_type": (ExplorationType.RANDOM, ExplorationType.RANDOM),
    "no_cuda_sync": (False, None),
    **dict.fromkeys(WEIGHTS, (None, None)),
    "trajs_per_batch": (None, None),
    "collector_class": (None, "single"),
    **dict.fromkeys(("envs_per_worker", "seed", "prefetch", "max_staleness", "min_workers"), (None, None)),
    "restarts": (Restarts(), Restarts()),
    "fragment_timeout_s": (600.0, 600.0),
    "placement_timeout_s": (300.0, 300.0),
    "on_env_error": ("raise", "raise"),
}
OF_MULTI = {
    "set_truncated": False,
    "track_policy_version": False,
    "track_traj_ids": True,
    **dict.fromkeys(("trajs_per_write", "traj_format", "compile_policy", "cudagraph_policy", "worker_idx")),
    "auto_register_policy_transforms": None,
    "compact_obs": False,
    **dict.fromkeys(("sync", "num_workers", "preemptive_threshold", "cat_results", "num_threads", "init_fn")),
    "num_sub_threads": 1,
    "update_at_each_batch": False,
    "backend": "process",
}
OF_RAY = {
    "num_workers_per_collector": 1,
    "collector_kwargs": None,
    "sync": False,
    **dict.fromkeys(("ray_init_config", "remote_configs", "num_collectors")),
    "update_after_each_batch": False,
    "max_weight_update_interval": -1,
    "use_env_creator": False,
}


def test_the_defaults_are_those_of_the_contract():
    for kinds, table, column in (
        ((MultiSyncCollector, MultiAsyncCollector), OF_MULTI, 0),
        ((RayCollector,), OF_RAY, 1),
    ):
        for kind in kinds:
            defaults = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
            wanted = {name: both[column] for name, both in DEFAULTS.items()} | table
            assert {name: defaults[name] for name in wanted} == wanted
            assert set(defaults) - set(wanted) - PEERS == OURS


# ---- how many workers, and what is shared


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"num_collectors": 3}, 3),
        ({"sources": ["CartPole-v1"] * 4}, 4),
        ({"collector_kwargs": [{}, {}, {}]}, 3),
        ({"remote_configs": [{}, {}]}, 2),
        ({"remote_configs": [{}] * 2, "collector_kwargs": [{}] * 2}, 2),
        ({}, 1),
    ],
)
def test_the_number_of_actors_is_given_or_that_of_a_list(options, number, build):
    collector = build(**{"sources": "CartPole-v1", "frames_per_batch": 12, "envs_per_worker": None, **options})
    assert collector.num_collectors == number
    assert collector.next().shape == (number, 12 // number)


BAD = [
    (
        {"num_collectors": 3, "create_env_fn": ["CartPole-v1"] * 2},
        ValueError,
        "num_collectors=3 does not match the list",
    ),
    ({"num_collectors": 3, "remote_configs": [{}]}, ValueError, "remote_configs has 1 entries for 3 workers"),
    ({"num_collectors": 3, "collector_kwargs": [{}] * 2}, ValueError, "collector_kwargs has 2 entries for 3 workers"),
    ({"collector_kwargs": [{}] * 2, "remote_configs": [{}] * 3}, ValueError, r"lists of lengths \[2, 3\]"),
    ({"num_collectors": 3, "policy_factory": [Always]}, ValueError, "policy_factory has 1 entries for 3 workers"),
    (
        {"num_collectors": 3, "sync": True},
        ValueError,
        "frames_per_batch=100 cannot be shared by 3 workers; use a multiple of 3",
    ),
    ({"collector_kwargs": {"frames_per_bach": 3}}, TypeError, "'frames_per_bach', which is no keyword of Collector"),
    *(
        ({"collector_kwargs": {name: 1}}, ValueError, f"'{name}', which RayCollector decides")
        for name in ("create_env_fn", "policy", "total_frames", "worker_idx", *sorted(WEIGHTS))
    ),
    ({"collector_kwargs": [{"seed": 1}, {"seed": 2}]}, ValueError, "seed differs between workers 0 and 1"),
    ({"num_workers_per_collector": 2, "envs_per_worker": 3}, ValueError, "are both the number of envs"),
    ({"max_weight_update_interval": -2}, ValueError, "max_weight_update_interval"),
    ({"weight_updater": object(), "weight_sync_schemes": {"policy": RayWeightSyncScheme()}}, TypeError, "both given"),
    ({"prefetch": -1}, ValueError, "prefetch=-1 must be at least 0"),
    ({"max_staleness": -1}, ValueError, "max_staleness=-1 must be at least 0"),
    ({"max_staleness": 1, "sync": True}, ValueError, "max_staleness is for asynchronous"),
    ({"min_workers": 0}, ValueError, "min_workers=0 must be at least 1"),
    (
        {"min_workers": 3, "num_collectors": 2},
        ValueError,
        "min_workers=3 must be between 1 and the number of workers, 2",
    ),
    ({"fragment_timeout_s": 0}, ValueError, "fragment_timeout_s=0 must be more than 0"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD, ids=plain)
def test_wrong_options_are_refused_before_workers_start(options, error, message, monkeypatch):
    monkeypatch.setattr(base, "assemble", None)
    with pytest.raises(error, match=message):
        RayCollector(**{"create_env_fn": "CartPole-v1", "frames_per_batch": 100, **options})


OF_MULTI_CLASSES = [
    (MultiSyncCollector, {"preemptive_threshold": 1.5}, "preemptive_threshold=1.5 must be between 0 and 1"),
    (MultiAsyncCollector, {"preemptive_threshold": 0.5}, "preemptive_threshold=0.5 is for synchronous collection"),
    (MultiSyncCollector, {"cat_results": "join"}, "cat_results='join' must be None, 'stack' or an int"),
    (MultiAsyncCollector, {"cat_results": 0}, "cat_results=0 is for synchronous collection"),
    (MultiSyncCollector, {"frames_per_batch": [2, 2, 2]}, "frames_per_batch has 3 entries for 2 workers"),
    (MultiAsyncCollector, {"device": ["cpu"]}, "device has 1 entries for 2 workers"),
]


@pytest.mark.parametrize(("kind", "options", "message"), OF_MULTI_CLASSES, ids=plain)
def test_what_multi_classes_cannot_do_is_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind([CountingEnv] * 2, **{"frames_per_batch": 4, "backend": "inline", **options})


@pytest.mark.parametrize("name", [field.name for field in fields(Restarts)])
def test_restarts_are_not_negative(name):
    with pytest.raises(ValueError, match=name):
        Restarts(**{name: -1})


def test_torch_has_so_many_threads_in_this_process_until_shutdown():
    before = torch.get_num_threads()
    with MultiSyncCollector([CountingEnv], frames_per_batch=2, backend="inline", num_threads=before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("name", ["interruptor", *sorted({*OF_MULTI} - {*OF_RAY} - {"set_truncated"})])
def test_ray_collector_takes_no_keywords_of_others(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        RayCollector("CartPole-v1", frames_per_batch=20, **{name: None})


def test_multi_classes_run_our_collector_only():
    for fine in (None, Collector):
        MultiSyncCollector(["CartPole-v1"], frames_per_batch=2, collector_class=fine, backend="inline").shutdown()
    for other in ("sync", MultiSyncCollector):
        with pytest.raises(TypeError, match="must be None or Collector"):
            MultiSyncCollector(["CartPole-v1"], frames_per_batch=2, collector_class=other)


def test_callables_are_wrapped_for_torchrl_if_asked(build, monkeypatch):
    envs, wrapped = pytest.importorskip("torchrl.envs"), []
    monkeypatch.setattr(envs, "EnvCreator", lambda env: wrapped.append(env) or env)
    make = CountingEnvs(LONG)
    sources = ["CartPole-v1", make, CountingEnv]
    assert build(sources=sources, sync=False, use_env_creator=True).num_collectors == 3
    assert wrapped == [make, CountingEnv]


def test_without_torchrl_the_wrapping_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchrl.envs", None)
    with pytest.raises(ImportError, match=r"swath\[torchrl\]"):
        RayCollector(CountingEnv, frames_per_batch=2, use_env_creator=True)


def test_in_this_process_keywords_of_others_pass_at_their_defaults_only():
    further = {**OF_MULTI, **OF_RAY} | {name: both[0] for name, both in DEFAULTS.items() if both[0] is not REQUIRED}
    parameters = inspect.signature(Collector).parameters
    defaults = {name: value for name, value in further.items() if name not in parameters}
    Collector("CartPole-v1", frames_per_batch=2, **defaults).shutdown()
    for name in defaults:
        refusal = (
            "Collector calls it num_collectors" if name == "num_workers" else "is for collectors with workers elsewhere"
        )
        with pytest.raises(ValueError, match=f"{name}=.*{refusal}"):
            Collector("CartPole-v1", frames_per_batch=2, **{name: "other"})
