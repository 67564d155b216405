"""The table of bad input: what is handed in, which error it is, what the message says; and nothing is left open."""

import pytest
from collector_toys import LONG, Always, Memory, make_collector, multi

from plain import plain
from swath import Collector
from swath.errors import Closed, NoEffectWarning, NonFinite
from swath.testing import CountingEnv, CountingEnvs, EnvBroke, Fault


class Registry:
    """Keeps every env that it builds, so that a test can see whether it was closed."""

    def __init__(self):
        self.built = []

    def noting(self, make):
        def env():
            source = make()
            self.built += [] if source is None else getattr(source, "envs", [source])
            return source

        return env

    def envs(self, *like):
        return self.noting(CountingEnvs(*like))

    @property
    def open(self):
        return [env for env in self.built if env.closed != 1]


@pytest.fixture
def registry():
    return Registry()


FRAMES = {"frames_per_batch": 10}
SOURCES = {
    "an empty list": ([], ValueError, "exactly one env source, got 0"),
    "two sources": (["CartPole-v1", "CartPole-v1"], ValueError, "exactly one env source, got 2"),
    "a module that is not there": ("no_such_module:Env-v0", ModuleNotFoundError, "no_such_module"),
}


@pytest.mark.parametrize(("source", "error", "message"), SOURCES.values(), ids=SOURCES)
def test_a_bad_env_source_is_refused(source, error, message):
    with pytest.raises(error, match=message):
        Collector(source, **FRAMES)


NUMBERS = [
    ("frames_per_batch", 0, ValueError, "frames_per_batch=0 must be at least 1"),
    ("frames_per_batch", 2.0, ValueError, "frames_per_batch=2.0 is of type float; it must be an integer"),
    ("frames_per_batch", True, ValueError, "frames_per_batch=True is of type bool"),
    ("frames_per_batch", [10], ValueError, r"frames_per_batch=\[10\] is of type list"),
    ("envs_per_worker", 0, ValueError, "envs_per_worker=0 must be at least 1"),
    ("worker_idx", -1, ValueError, "worker_idx=-1 must be at least 0"),
    ("worker_idx", 2**16, ValueError, "worker_idx=65536 with 1 workers: there may be 65536 workers in all"),
    ("trajs_per_batch", 0, ValueError, "trajs_per_batch=0 must be at least 1"),
    ("trajs_per_write", 2, ValueError, "trajs_per_write=2 needs trajs_per_batch"),
    ("traj_format", "cat", ValueError, "traj_format='cat' needs trajs_per_batch"),
    ("on_env_error", "ignore", ValueError, "must be one of 'raise', 'reset', 'restart'"),
    ("exploration_type", "greedy", ValueError, "exploration_type='greedy' is none of"),
    ("replay_buffer", object(), TypeError, r"replay_buffer is of type object without extend\(\)"),
    ("env_device", "meta", ValueError, "the env runs on cpu, where it was built"),
    ("compile_policy", True, ValueError, "compile_policy needs a policy that is called, not a RandomPolicy"),
    ("policy_factory", [Always, Always], ValueError, "policy_factory has 2 entries for 1 worker"),
    ("policy_factory", lambda: None, TypeError, "returned None; it must return the policy"),
    ("backend", "cluster", ValueError, "backend='cluster' is unknown; backends are 'direct', 'thread', 'process'"),
    (
        "backend_options",
        {"prefetch": 1},
        ValueError,
        "backend_options={'prefetch': 1} is for collectors with workers elsewhere; backend 'direct' has",
    ),
    ("num_collectors", 0, ValueError, "num_collectors=0 must be a positive integer"),
    ("num_collectors", True, TypeError, "num_collectors=True is of type bool"),
    ("sync", True, ValueError, "sync=True is for collectors with workers elsewhere"),
    ("sync", False, ValueError, "sync=False is for collectors with workers elsewhere"),
    ("return_same_td", True, ValueError, "every batch owns its memory here"),
    ("reset_when_done", False, ValueError, "always begins another episode"),
    ("no_such_option", 1, TypeError, "unexpected keyword argument 'no_such_option'$"),
]


COMBINATIONS = {
    "policy and factory": ({"policy": Always(), "policy_factory": Always}, TypeError, "give one or the other"),
    "split without ids": ({"split_trajs": True, "track_traj_ids": False}, ValueError, "needs trajectory ids"),
    "split and whole": ({"split_trajs": True, "trajs_per_batch": 2}, ValueError, "two ways to the same end"),
    "writes without a buffer": ({"trajs_per_batch": 2, "trajs_per_write": 2}, ValueError, "pass replay_buffer="),
    "writes of no episodes": (
        {"trajs_per_batch": 2, "trajs_per_write": 0, "replay_buffer": Memory()},
        ValueError,
        "trajs_per_write=0 must be at least 1",
    ),
    "a bad format with episodes": ({"trajs_per_batch": 2, "traj_format": "flat"}, ValueError, "'padded' or 'cat'"),
    "many direct collectors": ({"backend": "direct", "num_collectors": 2}, ValueError, "takes at most one collector"),
}


ALONE = {plain(f"{name}={value!r}"): ({name: value}, error, message) for name, value, error, message in NUMBERS}


@pytest.mark.parametrize("case", ALONE | COMBINATIONS)
def test_a_bad_option_or_combination_is_refused_and_nothing_is_left_open(case, registry):
    options, error, message = (ALONE | COMBINATIONS)[case]
    with pytest.raises(error, match=message):
        Collector(registry.envs(), **{"frames_per_batch": 10, "envs_per_worker": 2, **options})
    assert registry.open == []


def test_a_third_positional_argument_is_refused():
    with pytest.raises(TypeError, match="at most 2 positional arguments"):
        Collector("CartPole-v1", None, 200, frames_per_batch=200)


def test_restart_cannot_rebuild_an_instance():
    with pytest.raises(ValueError, match="on_env_error='restart' rebuilds the env"):
        Collector(CountingEnv(), on_env_error="restart", **FRAMES)


def test_a_source_that_counts_steps_itself_takes_no_limit():
    envs = pytest.importorskip("torchrl.envs")
    env = envs.TransformedEnv(envs.GymEnv("CartPole-v1"), envs.StepCounter())
    with pytest.raises(ValueError, match="max_frames_per_traj=3: 'step_count' is already present in the env"):
        Collector(env, max_frames_per_traj=3, **FRAMES)


@pytest.mark.parametrize("kind", ["raise_at_build", "build_nothing", "raise_at_reset"])
def test_an_env_that_fails_while_it_is_built_closes_the_others(kind, registry):
    faults = {2: [Fault(kind)]}
    with pytest.raises((EnvBroke, TypeError)) as caught:
        Collector(registry.envs(LONG, faults), envs_per_worker=4, frames_per_batch=20)
    assert registry.open == []
    if kind == "raise_at_build":
        assert any("raised by the env source" in note for note in caught.value.__notes__)
    if kind == "raise_at_reset":
        assert caught.value.__notes__ == ["raised by the first reset of env 2"]


@pytest.mark.parametrize("entry", ["nan", "nan_reward"])
def test_check_finite_names_the_env_and_counts_what_is_lost(entry):
    envs = CountingEnvs(LONG, {1: [Fault(entry, step=3)]})
    with make_collector(envs, envs_per_worker=2, check_finite=True) as collector:
        with pytest.raises(NonFinite, match=r"is not finite in env 1") as caught:
            collector.next()
        assert "observation" in str(caught.value) or "reward" in str(caught.value)
        assert "worker 0 (life 0, policy version 0)" in caught.value.__notes__[0]
        assert collector.stats()["frames_discarded"] > 0
        assert collector.next().numel() == 10


@pytest.mark.parametrize("entry", ["nan", "nan_reward"])
def test_what_is_not_finite_is_named_with_step_seed_and_action(entry):
    envs = CountingEnvs(LONG, {1: [Fault(entry, episode=1, step=3)]})

    def policy(observation):
        return observation.new_tensor([0, 1]).long()

    with make_collector(envs, policy, envs_per_worker=2, frames_per_batch=4, check_finite=True, seed=5) as collector:
        collector.next()
        named = r"^next .* is not finite in env 1, step 2 \(seed \d+\) after the action \[1\]: .*nan"
        with pytest.raises(NonFinite, match=named):
            collector.next()
        assert collector.stats()["frames_discarded"] > 0


USES = {
    "iter": lambda c: next(iter(c)),
    "next": lambda c: c.next(),
    "reset": lambda c: c.reset(),
    "reset some": lambda c: c.reset([True, False]),
    "set_seed": lambda c: c.set_seed(1),
    "state_dict": lambda c: c.state_dict(),
    "load_state_dict": lambda c: c.load_state_dict({}),
    "start": lambda c: c.start(),
    "pause": lambda c: c.pause().__enter__(),
    "update_policy_weights_": lambda c: c.update_policy_weights_(),
    "receive_weights": lambda c: c.receive_weights(),
    "publish_weights": lambda c: c.publish_weights({}),
    "increment_version": lambda c: c.increment_version(),
    "cascade_execute": lambda c: c.cascade_execute("policy_version"),
    "get_distant_attr": lambda c: c.get_distant_attr("policy"),
    "map_fn": lambda c: c.map_fn("get_policy_version"),
    "getattr_env": lambda c: c.getattr_env("closed"),
    "getattr_policy": lambda c: c.getattr_policy("weight"),
    "getattr_rb": lambda c: c.getattr_rb("written"),
    "get_model": lambda c: c.get_model("policy"),
    "register_scheme_receiver": lambda c: c.register_scheme_receiver({}),
    "init_updater": lambda c: c.init_updater(),
    "weight_updater": lambda c: setattr(c, "weight_updater", None),
    "fake_tensordict": lambda c: c.fake_tensordict(),
    "pre_collect_hook": lambda c: setattr(c, "pre_collect_hook", print),
    "post_collect_hook": lambda c: setattr(c, "post_collect_hook", print),
    "set_post_collect_hook": lambda c: c.set_post_collect_hook(print),
    "worker_idx": lambda c: setattr(c, "worker_idx", 1),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("make", [make_collector, multi], ids=["one worker", "many"])
def test_a_closed_collector_says_so(make, use):
    if use is USES["fake_tensordict"] and make is multi:
        pytest.skip("it is not there")
    collector = make(policy=Always(), replay_buffer=Memory())
    collector.shutdown()
    with pytest.raises(Closed, match="Collector was shut down; build another one"):
        use(collector)


NO_EFFECT = [
    ({"use_buffers": True}, "use_buffers has no effect here"),
    ({"use_buffers": False}, "use_buffers has no effect here"),
    ({"extend_buffer": False}, "extend_buffer has no effect here"),
    ({"policy": Always(), "exploration_type": "mode"}, "the policy does not take it"),
    ({"trajs_per_batch": 2, "traj_format": "padded", "replay_buffer": Memory()}, "traj_format='padded' has no effect"),
]


@pytest.mark.parametrize(("options", "message"), NO_EFFECT)
def test_a_setting_without_effect_is_warned_of_once(options, message, monkeypatch):
    monkeypatch.setattr("swath.errors._warned_of", set())
    with pytest.warns(NoEffectWarning, match=message):
        make_collector(**options).shutdown()
    make_collector(**options).shutdown()


def test_the_defaults_of_the_peers_knobs_pass():
    make_collector(use_buffers=None, extend_buffer=True, return_same_td=False, reset_when_done=True).shutdown()
    make_collector(backend="direct", num_collectors=1, sync=None, no_cuda_sync=True).shutdown()
