"""The arguments of `Evaluator`: each has its effect on every backend, or is refused before anything is built."""

import inspect
import random
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from evaluator_toys import PLACES, N, Named, Predicts, built, evaluated, evaluator
from torch import nn
from uneven_env import SHORT, Shifted, UnevenEnv, played

from plain import plain
from swath import Collector, MultiAsyncCollector, MultiSyncCollector, RayCollector
from swath.evaluation.options import CollectorSettings
from swath.evaluators import Evaluator
from swath.weight_update import MultiProcessWeightSyncScheme, NoWeightSyncScheme

pytestmark = pytest.mark.usefixtures("fork_server")


def returns_of(shift=0, n=N):
    result = evaluated(num_trajectories=n)
    return [played(seed, shift)[0] for seed in result.seeds]


def as_plain(result):
    return result.returns.tolist() == returns_of()


def shifted(shift):
    return lambda result: result.returns.tolist() == returns_of(shift)


def doubled(result):
    return result.returns.tolist() == [2 * value for value in returns_of()]


def mean_step(trajectories):
    return {"mean_step": trajectories["observation"][..., 1].float().mean(), "rows": trajectories.batch_size[0]}


UNEVEN = "uneven_env:UnevenEnv-v0"
WORKS = {
    "env": [({"env": lambda: Named("double")}, doubled), ({"env": [Named] * 5}, as_plain)],
    "policy_factory": [({"policy_factory": lambda env: Shifted(len(env.name))}, shifted(5))],
    "num_trajectories": [({"num_trajectories": 3}, lambda result: result["eval/num_episodes"] == 3)],
    "max_steps": [
        (
            {"max_steps": 10},
            lambda result: set(result.lengths) == {SHORT, 10} and (result.truncated == (result.lengths == 10)).all(),
        )
    ],
    "frames_per_batch": [({"frames_per_batch": 1}, as_plain)],
    "collector_cls": [
        ({"collector_cls": kind}, as_plain)
        for kind in (None, "Collector", Collector, "MultiSyncCollector", MultiSyncCollector)
    ],
    "collector_kwargs": [
        ({"collector_kwargs": {"create_env_kwargs": {"name": "double"}}}, doubled),
        ({"collector_kwargs": {"env_device": "cpu", "policy_device": "cpu", "reset_at_each_iter": True}}, as_plain),
        (
            {"collector_kwargs": {"traj_format": "cat", "postproc": lambda td: td[:3]}, "metrics_fn": mean_step},
            lambda result: result["eval/rows"] == 3 and result["eval/mean_step"] == 1.0,
        ),
    ],
    "weight_sync_schemes": [({"weight_sync_schemes": {"policy": MultiProcessWeightSyncScheme()}}, as_plain)],
    "log_prefix": [({"log_prefix": "test"}, lambda result: all(key.startswith("test/") for key in result))],
    "reward_keys": [({"reward_keys": [("next", "reward")]}, as_plain)],
    "done_keys": [({"done_keys": ("next", "terminated")}, as_plain)],
    "device": [({"device": "cpu"}, as_plain)],
    "exploration_type": [
        ({"policy_factory": Predicts}, as_plain),
        ({"policy_factory": Predicts, "exploration_type": "RANDOM"}, shifted(1)),
    ],
    "metrics_fn": [({"metrics_fn": mean_step}, lambda result: result["eval/rows"] == N)],
    "on_result": [({"on_result": lambda td: td.set("seen", torch.ones(()))}, as_plain)],
    "busy_policy": [({"busy_policy": policy}, as_plain) for policy in ("queue", "skip", "latest")],
    "seed": [
        ({"seed": 3}, lambda result: not as_plain(result)),
        ({"seed": None}, lambda result: min(result.seeds) > 0),
    ],
    "num_envs": [({"num_envs": 3}, as_plain)],
    "until_ci_halfwidth": [({"until_ci_halfwidth": 1e9}, lambda result: result.stopped == "ci")],
    "max_trajectories": [
        (
            {"until_ci_halfwidth": 1e-9, "max_trajectories": 2 * N},
            lambda result: result.stopped == "max" and result["eval/num_episodes"] == 2 * N,
        )
    ],
    "record_video": [({"env": UNEVEN, "record_video": 2}, lambda result: len(result.video_lengths) == 2)],
    "max_video_bytes": [
        ({"env": UNEVEN, "record_video": 2, "max_video_bytes": 1}, lambda result: result.video_truncated)
    ],
    "per_episode": [
        ({"per_episode": True}, lambda result: result["eval/episode_lengths"].tolist() == [*result.lengths])
    ],
    "retries": [({"retries": 0}, as_plain)],
    "start_timeout_s": [({"start_timeout_s": 200.0}, as_plain)],
}
"""Arguments that work in a thread and in a process, each with a check of its effect."""

ELSEWHERE = {"policy", "num_gpus", "ray_kwargs", "backend"}
"""Arguments with other tests below."""

OTHER_FILES = {
    *("init_fn", "num_workers", "timeout_s", "placement_timeout_s", "dump_video", "video_dir", "video_fps"),
    *("keep_best", "keep_float64", "env_processes", "step_timeout_s"),
}


def test_every_argument_has_its_test():
    arguments = set(inspect.signature(Evaluator).parameters)
    assert arguments - OTHER_FILES == {*WORKS, *ELSEWHERE}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("options", "shows"), [pytest.param(*row, id=f"{name}{i}") for name in WORKS for i, row in enumerate(WORKS[name])]
)
def test_it_has_its_effect(place, options, shows):
    assert shows(evaluated(place, **options))


def test_options_that_need_a_process_get_one_with_the_thread_backend():
    schemes = {"policy": MultiProcessWeightSyncScheme()}
    for options in ({"collector_cls": "MultiSyncCollector"}, {"weight_sync_schemes": schemes}):
        built.clear()
        with evaluator(**options) as ev:
            ev.evaluate()
            assert repr(ev).startswith("<Evaluator process 1 worker")
        assert not built, "built here"


# Refused ------------------------------------------------------------------------------------------------------------

POLICY = {"policy_factory": None}
NET = Shifted()


def by_a_module(observation):
    return NET(observation)


def by(net):
    return lambda observation: net(observation)  # noqa: PLW0108  it is the lambda that is tried


def by_default(observation, net=NET):
    return net(observation)


class NotCopyable(nn.Module):
    def __deepcopy__(self, memo):
        raise RuntimeError("no copies")


REFUSED = [
    ({**POLICY}, ValueError, "`policy` or `policy_factory` must be provided"),
    ({"policy": Shifted()}, ValueError, "not both"),
    ({"policy": NotCopyable(), **POLICY}, TypeError, "NotCopyable cannot be copied.*no copies.*policy_factory"),
    ({"policy": by_a_module, **POLICY}, TypeError, "refers to .*policy_factory"),
    ({"policy": by(Shifted()), **POLICY}, TypeError, "refers to .*policy_factory"),
    ({"policy": by_default, **POLICY}, TypeError, "refers to .*net.*policy_factory"),
    ({"policy": Shifted(), **POLICY, "place": "process"}, ValueError, "policy_factory.*worker|worker.*policy_factory"),
    ({"env": UnevenEnv(), "place": "process"}, ValueError, "builds the env in the worker.*callable"),
    ({"place": "cloud"}, ValueError, "Unknown backend 'cloud'.*'thread', 'process', 'ray'"),
    ({"busy_policy": "wait"}, ValueError, "Unknown busy_policy.*'wait'.*'error'"),
    ({"env": 5}, TypeError, "env source is of type int"),
    ({"env": [UnevenEnv(), Named]}, ValueError, "one kind"),
    ({"env": [Named, Named], "num_envs": 3}, ValueError, "num_envs=3.*multiple of 2"),
    ({"env": UnevenEnv(), "collector_kwargs": {"create_env_kwargs": {"name": "x"}}}, ValueError, "create_env_kwargs"),
    ({"num_envs": 0, "place": "process"}, ValueError, "num_envs=0"),
    ({"num_workers": 2}, ValueError, "num_workers=2.*thread"),
    ({"retries": -1}, ValueError, "retries=-1"),
    ({"timeout_s": float("inf")}, ValueError, "timeout_s=inf"),
    ({"start_timeout_s": 0}, ValueError, "start_timeout_s=0"),
    ({"log_prefix": ""}, ValueError, "log_prefix=''"),
    ({"record_video": N + 1}, ValueError, f"record_video={N + 1}"),
    ({"max_trajectories": 9}, ValueError, "max_trajectories"),
    *(({"until_ci_halfwidth": value}, ValueError, "until_ci_halfwidth") for value in (0.0, float("nan"), "narrow")),
    ({"until_ci_halfwidth": 1.0, "max_trajectories": N - 1}, ValueError, f"max_trajectories={N - 1} must be at least"),
    ({"video_dir": "films"}, ValueError, "record_video of 1 or more"),
    ({"record_video": 1, "video_fps": 30}, ValueError, "video_dir, where films are written"),
    ({"record_video": 1, "video_dir": "films", "video_fps": 0}, ValueError, "finite number > 0"),
    ({"exploration_type": "CALM"}, ValueError, "CALM"),
    ({"collector_cls": "MultiAsyncCollector"}, ValueError, "its own runner"),
    ({"weight_sync_schemes": ["policy"]}, TypeError, "dict of schemes"),
    ({"reward_keys": 5}, TypeError, "reward_keys has 5"),
    ({"num_gpus": 0}, ValueError, "num_gpus=0 with backend='thread'"),
    ({"ray_kwargs": {"num_cpus": 1}}, ValueError, "ray_kwargs=.*backend='thread'"),
    ({"num_gpus": -1, "place": "ray"}, ValueError, "num_gpus=-1"),
    ({"ray_kwargs": {"max_restarts": 2}, "place": "ray"}, ValueError, "max_restarts"),
    ({"ray_kwargs": {"num_gpus": 1}, "place": "ray"}, ValueError, "num_gpus"),
    ({"ray_kwargs": {"name": "a"}, "num_workers": 2, "place": "ray"}, ValueError, "num_workers=2"),
    ({"collector_kwargs": {"colour": 5}}, TypeError, "'colour'"),
    ({"collector_kwargs": {"max_frames_per_traj": 5}}, ValueError, "'max_frames_per_traj'"),
    ({"collector_kwargs": {"reset_at_each_iter": False}}, ValueError, "reset_at_each_iter=False"),
    ({"collector_kwargs": {"total_frames": 100}}, ValueError, "total_frames=100"),
    ({"collector_kwargs": {"policy_device": "cpu"}, "device": "meta"}, ValueError, "policy_device='cpu'.*'meta'"),
    ({"collector_kwargs": {"num_threads": 2}}, ValueError, "num_threads=2 with backend='thread'"),
    ({"collector_kwargs": {"traj_format": "rows"}, "metrics_fn": mean_step}, ValueError, "traj_format='rows'"),
]


@pytest.mark.parametrize(("options", "kind", "text"), REFUSED, ids=plain)
def test_it_is_refused_before_anything_is_built(options, kind, text):
    if options.get("place") == "ray":
        pytest.importorskip("ray")
    built.clear()
    threads = set(threading.enumerate())
    with pytest.raises(kind, match=text):
        evaluator(**options)
    assert not built
    assert set(threading.enumerate()) <= threads


def test_the_ray_backend_needs_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("swath.evaluation.options.find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"Ray is required.*pip install .swath\[ray\]"):
        evaluator("ray")


def test_an_env_of_another_service_is_refused():
    env = Named()
    with evaluator(env=env), pytest.raises(ValueError, match="stepped by another"):
        evaluator(env=gym.wrappers.TimeLimit(env, 5))
    env = Named()
    collector = Collector(env, frames_per_batch=4)
    with pytest.raises(ValueError, match="stepped by another"):
        evaluator(env=env)
    collector.shutdown(close_env=False)
    with evaluator(env=env) as ev:
        assert as_plain(ev.evaluate())
        with pytest.raises(ValueError, match="stepped by another"):
            Collector(env, frames_per_batch=4)


# collector_kwargs and keys ------------------------------------------------------------------------------------------


def test_every_argument_of_every_collector_is_followed_or_refused_with_a_reason():
    kinds = (Collector, MultiSyncCollector, MultiAsyncCollector, RayCollector)
    names = {name for kind in kinds for name in inspect.signature(kind).parameters} - {"args", "others"}
    followed = set()
    for name in names:
        try:
            CollectorSettings.from_kwargs({name: None}, has_metrics_fn=True)
        except ValueError as error:
            assert name in str(error)  # noqa: PT017  most raise it, some do not
        else:
            followed.add(name)
    assert followed == {
        *(
            "create_env_kwargs",
            "env_device",
            "policy_device",
            "compile_policy",
            "cudagraph_policy",
            "num_threads",
            "plans",
        ),
        *("traj_format", "storing_device", "postproc", "init_random_frames", "plans"),
    }


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["reward_keys", "done_keys"])
def test_a_key_that_the_env_does_not_write_is_the_outcome(place, name):
    with evaluator(place, **{name: [("next", "reward" if name == "reward_keys" else "done"), "gain"]}) as ev:
        for _ in range(2):
            ev.trigger_eval()
            with pytest.raises(KeyError, match=rf"{name} has \['gain'\].*\('next', '(reward|done)'\)"):
                ev.wait()


def test_only_models_with_a_scheme_can_be_sent():
    schemes = {"policy": MultiProcessWeightSyncScheme()}
    with evaluator(weight_sync_schemes=schemes) as ev:
        with pytest.raises(KeyError, match=r"\['critic'\].*declare \['policy'\]"):
            ev.evaluate(weights_dict={"critic": Shifted(), "policy": Shifted(1)})
        assert as_plain(ev.evaluate())
        assert shifted(1)(ev.evaluate(Shifted(1)))


def test_a_model_whose_scheme_sends_nothing_stays_as_built():
    with evaluator(weight_sync_schemes={"policy": NoWeightSyncScheme()}) as ev:
        result = ev.evaluate(Shifted(1))
    assert as_plain(result)
    assert result["eval/policy_version"] == 0


# Built ----------------------------------------------------------------------------------------------------------------


def several(n):
    return gym.vector.SyncVectorEnv([UnevenEnv] * n, autoreset_mode=gym.vector.AutoresetMode.DISABLED)


FORMS = {
    "an id": (UNEVEN, 1, "everywhere"),
    "an id, several times": (UNEVEN, 3, "everywhere"),
    "a callable": (UnevenEnv, None, "everywhere"),
    "a callable of a vector env": (lambda: several(2), None, "everywhere"),
    "an instance": (UnevenEnv(), None, "thread"),
    "a vector env": (several(2), None, "thread"),
    "a list of ids": ([UNEVEN, UNEVEN], None, "everywhere"),
    "a list of callables, twice": ([UnevenEnv, UnevenEnv], 4, "everywhere"),
    "a list of instances": ([UnevenEnv(), UnevenEnv()], None, "thread"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_envs_of_every_form_give_the_same_numbers(form, place):
    env, num_envs, where = FORMS[form]
    if where == "thread" != place:
        with pytest.raises(ValueError, match="callable"):
            evaluator(place, env=env, num_envs=num_envs)
        return
    result = evaluated(place, env=env, num_envs=num_envs)
    assert [*zip(result.returns, result.lengths, strict=True)] == [played(seed) for seed in result.seeds]
    assert result.seeding == "episode"


def test_tasks_of_a_list_take_turns():
    envs = [lambda: Named("plain"), lambda: Named("double")]
    for num_envs in (2, 4):
        result = evaluated(env=envs, num_envs=num_envs)
        assert result.returns.tolist() == [played(seed)[0] * (1 + i % 2) for i, seed in enumerate(result.seeds)]


def test_an_instance_is_closed_with_the_evaluator_but_not_where_construction_fails():
    env = UnevenEnv()
    with pytest.raises(ZeroDivisionError):
        evaluator(env=env, policy_factory=lambda: 1 / 0)
    assert (env.closed, env.resets) == (False, [])
    with evaluator(env=env) as ev:
        ev.evaluate()
        assert not env.closed
    assert env.closed


@pytest.mark.parametrize(
    ("env", "policy", "at_once"),
    [("callable", "factory", False), ("list", "factory", False), ("callable", "module", True), ("it", "factory", True)],
)
def test_a_thread_builds_at_once_unless_env_and_policy_are_both_to_be_built(env, policy, at_once):
    events = []

    def make(part, kind):
        events.append((part, threading.current_thread() is threading.main_thread()))
        return kind()

    def make_env():
        return make("env", UnevenEnv)

    envs = {"callable": make_env, "list": [make_env], "it": UnevenEnv()}
    factory = {"policy_factory": lambda: make("policy", Shifted)}
    with evaluator(env=envs[env], **(factory if policy == "factory" else {**POLICY, "policy": Shifted()})) as ev:
        before = list(events)
        ev.evaluate()
        ev.evaluate()
    expected = ["env"] * (env != "it") + ["policy"] * (policy == "factory")
    assert events == [(part, at_once) for part in expected], "each once, env first"
    assert before == (events if at_once else [])


def test_factories_draw_the_same_in_every_place_worker_and_life():
    def drawn():
        return Shifted(int(torch.randint(0, 10**5, ())) + int(np.random.randint(10**5)) + random.randrange(10**5))

    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    results = [evaluated(policy_factory=drawn), evaluated(env=UnevenEnv(), policy_factory=drawn)]
    results.append(evaluated("process", policy_factory=drawn, num_workers=2))
    other = evaluated(policy_factory=drawn, seed=1)
    assert len({tuple(result.returns) for result in results}) == 1
    assert tuple(other.returns) != tuple(results[0].returns)
    assert before[0].equal(torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())
