"""The newest weights for each worker, what is sent and what is kept; the contract holds for every backend."""

import threading
import weakref
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swath.weights.channel import Channel
from toys import end


class Kept:
    """A shared value."""

    def __init__(self, value):
        self.value = value

    def open(self):
        return self.value


class Store:
    """A `share` that knows which of its values still exist."""

    def __init__(self, room=1000):
        self._made = weakref.WeakValueDictionary()
        self.room = room
        self.count = 0

    def __call__(self, value):
        if self.count == self.room:
            raise MemoryError("the store is full")
        self.count += 1
        kept = self._made[self.count] = Kept(value)
        return kept

    @property
    def live(self):
        return [kept.value for _, kept in sorted(self._made.items())]


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def channel(store):
    return Channel(store)


def opened(update):
    return None if update is None else (update.version, update.opened())


def sent(channel, worker=0, life=0):
    with channel.update_for((worker, life)) as update:
        return opened(update)


def not_sent(channel):
    """Return the update of a request that could not be sent."""
    with suppress(OSError), channel.update_for((0, 0)) as update:
        raise OSError("the wire broke")
    return opened(update)


def test_a_worker_that_keeps_its_built_weights_keeps_them_in_all_lives(channel):
    channel.publish({"policy": "a"})
    channel.keep_built_weights(5)
    assert sent(channel, 5) == (1, {})
    assert sent(channel, 6) == (1, {"policy": "a"})
    assert sent(channel, 5, life=1) == (1, {})
    channel.publish({"policy": "b"})
    assert sent(channel, 5, life=1) == (2, {"policy": "b"})
    assert sent(channel, 5, life=2) == (2, {"policy": "b"})


def test_an_update_that_could_not_be_sent_is_sent_again(channel):
    channel.publish({"policy": "a"})
    assert not_sent(channel) == (1, {"policy": "a"})
    assert channel.sent_version(0) == 0
    assert sent(channel) == (1, {"policy": "a"})
    assert sent(channel) is None
    assert not_sent(channel) is None
    assert sent(channel) is None, "it had arrived before"


def test_no_request_overtakes_the_one_that_brings_the_weights(channel):
    channel.publish({"policy": "a"})
    overtaken, order = threading.Event(), []

    def send():
        with channel.update_for((0, 0)) as update:
            overtaken.set()
            order.append(opened(update))

    thread = threading.Thread(target=send)
    with channel.update_for((0, 0)) as update:
        thread.start()
        assert sent(channel, worker=1) == (1, {"policy": "a"}), "others are not held up"
        assert not overtaken.wait(0.2)
        order.append(opened(update))
    end(thread)
    assert order == [(1, {"policy": "a"}), None]


def test_if_one_of_several_snapshots_cannot_be_shared_none_is_published(channel):
    store = Store(room=3)
    channel = Channel(store)
    channel.publish({"policy": "a", "critic": "c"})
    with pytest.raises(MemoryError):
        channel.publish({"policy": "b", "critic": "d"})
    assert (channel.version, store.live) == (1, ["a", "c"])
    assert sent(channel) == (1, {"policy": "a", "critic": "c"})


WORKERS, LIVES, MODELS = range(3), range(2), ("policy", "critic")
ACTIONS = st.one_of(
    st.tuples(st.just("all"), st.sets(st.sampled_from(MODELS))),
    st.tuples(st.just("some"), st.sets(st.sampled_from(MODELS)), st.sets(st.sampled_from(WORKERS))),
    st.tuples(st.just("ask"), st.sampled_from(WORKERS), st.booleans()),
)


@given(st.lists(ACTIONS, max_size=30))
def test_after_any_actions_a_request_brings_the_newest_weights_of_each_model(actions):
    store = Store()
    channel = Channel(store)
    lives = dict.fromkeys(WORKERS, 0)
    wanted = {worker: {} for worker in WORKERS}
    versions = dict.fromkeys(WORKERS, 0)
    weights = {worker: {} for worker in WORKERS}
    runs = dict.fromkeys(WORKERS, 0)
    for number, (kind, *rest) in enumerate(actions):
        if kind == "ask":
            worker, reborn = rest
            if reborn:
                lives[worker] += 1
                weights[worker], runs[worker] = {}, 0
            update = sent(channel, worker, lives[worker])
            if update is not None:
                runs[worker] = update[0]
                assert all(weights[worker].get(model) != value for model, value in update[1].items()), "sent twice"
                weights[worker].update(update[1])
            assert (weights[worker], runs[worker]) == (wanted[worker], versions[worker])
            assert channel.sent_version(worker) == versions[worker]
        else:
            models = {model: f"{model} {number}" for model in rest[0]}
            addressed = WORKERS if kind == "all" else rest[1]
            version = channel.publish(models, None if kind == "all" else addressed)
            for worker in addressed:
                wanted[worker].update(models)
                versions[worker] = version
    everyones = {value for worker in WORKERS for value in wanted[worker].values()}
    assert everyones <= set(store.live)
    assert len(store.live) <= len(MODELS) * (1 + len(WORKERS))


def test_some_workers_and_all_others_get_theirs_in_one_version(channel):
    channel.publish({"policy": "old"})
    assert channel.publish_each({1: {"policy": "own"}, None: {"policy": "all"}}) == 2
    assert [sent(channel, worker) for worker in (0, 1, 2)] == [(2, {"policy": name}) for name in ("all", "own", "all")]
