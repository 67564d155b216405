"""Where the envs of many workers come from, and which class is built for them."""

import threading
from functools import partial

import gymnasium as gym
import pytest
from collector_toys import LONG, Always, drawn, fleet

import swath
from swath import Collector, MultiAsyncCollector, MultiSyncCollector, collectors
from swath.collectors import MultiCollector
from swath.testing import CountingEnv, by_worker

pytestmark = pytest.mark.usefixtures("fork_server")


def test_an_instance_is_copied_to_each_worker_with_a_random_state_of_its_own():
    env = CountingEnv(0, LONG)
    env.reset(seed=1)
    with fleet(sources=[env, env], envs_per_worker=None) as collector:
        seeds = collector.get_distant_attr("env.seeds[-1]")
        assert collector.next().shape == (2, 10)
    assert None not in seeds
    assert seeds[0] != seeds[1]
    assert env.mark == (0, 0, 0)
    assert env.closed == 0


def test_what_cannot_be_pickled_names_the_way_out():
    env = CountingEnv(0, LONG)
    env.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"the attribute 'lock' of CountingEnv.*pass a callable that builds it"):
        fleet(sources=[env], envs_per_worker=None, frames_per_batch=5)
    policy = Always()
    policy.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"the attribute 'lock' of Always.*pass policy_factory"):
        fleet(policy=policy)


def test_a_variable_of_a_closure_that_cannot_travel_is_named():
    door = threading.Lock()

    def guarded(env):
        return door and env

    def make():
        return guarded(CountingEnv(0, LONG))

    for source in (make, partial(lambda make: make(), make)):
        with pytest.raises(
            TypeError, match=r"the variable 'door' of \S*guarded \(.*test_fleet_sources.py:\d+\), of type lock"
        ):
            fleet(sources=[source], envs_per_worker=1, frames_per_batch=5)
    with fleet(backend="process") as collector, pytest.raises(TypeError, match="the variable 'door' of"):
        collector.set_post_collect_hook(lambda batch: door and batch)


def test_keywords_and_gymnasium_ids_by_worker():
    kwargs = [{"max_episode_steps": 3}, {"max_episode_steps": 4}]
    with fleet(sources=["CartPole-v1", "CartPole-v1"], create_env_kwargs=kwargs, backend="inline") as collector:
        td = by_worker(drawn(collector, 3))
    for worker, limit in enumerate((3, 4)):
        assert td[worker]["next", "truncated"][0, :, 0].nonzero()[0].item() == limit - 1


def test_sources_and_numbers_must_agree():
    for arguments in ({"create_env_fn": CountingEnv}, {"create_env_fn": [CountingEnv] * 2, "num_workers": 3}):
        with pytest.raises(ValueError, match="num_workers"):
            MultiSyncCollector(**arguments, frames_per_batch=10)
    with pytest.raises(ValueError, match="empty list"):
        MultiSyncCollector([], frames_per_batch=10)
    with MultiSyncCollector(CountingEnv, num_workers=2, frames_per_batch=10, backend="inline") as collector:
        assert collector.next().shape == (2, 5)


def test_collector_and_multi_collector_build_these_classes():
    for backend in ("thread", "multiprocessing"):
        with Collector(CountingEnv, frames_per_batch=4, backend=backend, num_collectors=2) as collector:
            assert type(collector) is MultiAsyncCollector
    with Collector(CountingEnv, frames_per_batch=4, num_collectors=2, sync=True) as collector:
        assert type(collector) is MultiSyncCollector
    with MultiCollector([CountingEnv], sync=True, frames_per_batch=4, backend="inline") as collector:
        assert type(collector) is MultiSyncCollector
        assert isinstance(collector, MultiCollector)
    assert issubclass(MultiSyncCollector, MultiCollector)
    assert issubclass(MultiAsyncCollector, MultiCollector)
    with pytest.raises(TypeError, match="give sync=True or sync=False"):
        MultiCollector([CountingEnv], frames_per_batch=4)


def test_a_service_backend_of_torchrl_is_obeyed_or_refused_by_name():
    from torchrl import service_backend

    def kind(**options):
        with Collector(CountingEnv, frames_per_batch=4, **options) as collector:
            return type(collector), collector.collection.options.backend

    with service_backend("process"):
        assert kind() == (MultiAsyncCollector, "process")
        assert kind(backend="thread", sync=True) == (MultiSyncCollector, "thread"), "the arguments count"
        with service_backend("threading"):
            assert kind() == (MultiAsyncCollector, "thread")
        with service_backend("direct"):
            assert kind()[0] is Collector
        with (
            service_backend("rpc"),
            pytest.raises(ValueError, match=r"service_backend\('rpc'\) .* does not have that backend"),
        ):
            kind()
    assert kind()[0] is Collector


def test_the_one_class_of_torchrl_that_is_not_here_says_when_it_is_called_what_to_use():
    assert swath.AsyncCollector is collectors.AsyncCollector
    with pytest.raises(NotImplementedError, match="backend='process'"):
        swath.AsyncCollector(CountingEnv, None, frames_per_batch=4)


REFUSED = {
    "another number": ({"num_collectors": 3}, "num_collectors=3 does not match the list of 2 env sources"),
    "reserved": ({"backend_options": {"sync": True}}, r"the reserved keys \['sync'\]; pass them to Collector itself"),
    "given twice": ({"prefetch": 1, "backend_options": {"prefetch": 2}}, r"the duplicate keys \['prefetch'\]"),
    "the name elsewhere": ({"num_workers": 2}, "Collector calls it num_collectors"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_collector_cannot_pass_on_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Collector([CountingEnv] * 2, frames_per_batch=4, backend="thread", **options)


# ---- ids that the user's program has registered


@pytest.fixture
def registered():
    """Register an env with gymnasium for one test."""
    ids = []

    def register(env_id, entry_point, **options):
        gym.register(env_id, entry_point, **options)
        ids.append(env_id)

    yield register
    for env_id in ids:
        del gym.registry[env_id]


def test_an_id_that_the_program_has_registered_is_known_to_workers_in_processes(registered):
    class Mine(CountingEnv):
        def __init__(self, **kwargs):
            super().__init__(0, LONG)

    registered("Mine-v0", Mine, max_episode_steps=3)
    vector = partial(gym.make_vec, "Mine-v0", num_envs=2, vectorization_mode="sync")
    for source, envs in (("Mine-v0", 2), (lambda: gym.make("Mine-v0"), 2), (vector, None)):
        with fleet(sources=[source], envs_per_worker=envs, frames_per_batch=20, backend="process") as collector:
            batch = collector.next()
        assert batch["next", "truncated"][..., :4, 0].tolist() == [[[False, False, True, False]] * 2], "the limit holds"


def test_an_entry_point_that_cannot_travel_is_named_where_it_is_needed(registered):
    lock = threading.Lock()
    registered("Locked-v0", lambda: CountingEnv(0, LONG) if lock else None)
    with fleet(backend="process") as collector:
        assert collector.next() is not None
    with pytest.raises(
        TypeError, match=r"'Locked-v0'.* cannot be sent to a worker: .*the variable 'lock' of .*init_fn"
    ):
        fleet(sources=["Locked-v0"], envs_per_worker=1, frames_per_batch=5, backend="process")
