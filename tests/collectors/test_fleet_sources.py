"""Where the envs of many workers come from, and which class is built for them."""

import threading

import pytest
from collector_toys import LONG, Always, drawn, fleet

from swath import Collector, MultiAsyncCollector, MultiSyncCollector
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
    with pytest.raises(TypeError, match="pass a callable that builds it"):
        fleet(sources=[env], envs_per_worker=None, frames_per_batch=5)
    policy = Always()
    policy.lock = threading.Lock()
    with pytest.raises(TypeError, match="pass policy_factory"):
        fleet(policy=policy)


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
    with pytest.raises(TypeError, match="'sync'"):
        MultiCollector([CountingEnv], frames_per_batch=4)


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
