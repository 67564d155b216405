"""The laws of the house, each by its number, for collectors with many workers."""

import re
import threading
from itertools import product

import pytest
import torch
from collector_toys import (
    KINDS,
    LONG,
    MASK,
    PLACES,
    VERSION,
    Always,
    Held,
    InThread,
    Notebook,
    drawn,
    drawn_until,
    fleet,
    made_by,
    weights,
)

from swath.errors import Closed, RemoteFailure, WorkerLate
from swath.testing import CountingEnv, CountingEnvs, Fault, Lives, by_life, check_lives
from toys import DEADLINE_S, Odd
from traces import left, require_no_more_than

pytestmark = pytest.mark.usefixtures("fork_server")


# ---- 1, 2: sizes, and no frame twice

DEATHS = {0: [{1: [Fault("kill", step=3)]}, [], []], 1: [[Fault("exit", step=7)], {1: [Fault("exit", step=5)]}, []]}


@pytest.mark.parametrize(("kind", "place"), [*product(KINDS, PLACES)])
def test_law_1_and_2_batches_are_whole_and_no_frame_comes_twice_when_workers_die(kind, place, tmp_path):
    lives = Lives(tmp_path, DEATHS, num_envs=2, counting=LONG)
    with fleet(kind, lives.sources(3), backend=place, frames_per_batch=30) as collector:
        batches = [collector.next()]
        while collector.stats()["restarts"] < 3:
            batches.append(collector.next())
        batches += drawn(collector, 4)
        stats = collector.stats()
    shape = (3, 2, 5) if kind == "sync" else (2, 15)
    assert {batch.shape for batch in batches} == {shape}
    assert not any(MASK in batch.keys(include_nested=True) for batch in batches)
    check_lives(batches, LONG)
    ours = by_life(batches)
    assert (0, 0) not in ours, "worker 0 broke its first fragment"
    assert {life: td.shape[-1] for life, td in ours.items() if life in [(1, 0), (1, 1)]} == (
        {(1, 0): 5} if kind == "sync" else {}
    )
    assert (stats["restarts"], stats["fragments_lost"], stats["workers_lost"]) == (3, 3, 0)
    assert stats["frames"] == len(batches) * stats["requested_frames_per_batch"]
    assert stats["frames_discarded"] == stats["frames_dropped"] == 0


def test_law_1_and_2_hold_on_ray(tmp_path):
    lives = Lives(tmp_path, {1: [[Fault("kill", step=7)]]}, num_envs=2, counting=LONG)
    with fleet(sources=lives.sources(2), backend="ray") as collector:
        batches = drawn(collector, 4)
        stats = collector.stats()
    assert {batch.shape for batch in batches} == {(2, 2, 5)}
    check_lives(batches, LONG)
    assert (stats["restarts"], stats["fragments_lost"], stats["frames"]) == (1, 1, 80)


def test_law_2_what_is_discarded_is_counted(tmp_path):
    """Check that every step of a worker is delivered, counted as discarded, or lost with a worker."""
    book = Notebook(tmp_path / "steps")

    class Noting(CountingEnv):
        def step(self, action):
            answer = super().step(action)
            book(self.mark)
            return answer

    sources = [lambda i=i: Noting(i, LONG) for i in range(2)]
    with fleet("async", sources, envs_per_worker=None, prefetch=2, frames_per_batch=5) as collector:
        drawn(collector, 3)
        collector.reset()
        drawn(collector, 2)
        collector.set_seed(1)
        drawn(collector, 2)
        collector.reset([True, False])
        drawn(collector, 2)
        collector.load_state_dict(collector.state_dict())
        collector.get_distant_attr("worker_idx")
        facts = collector.stats()
    in_flight = 0
    assert len(book.lines) == facts["frames"] + facts["frames_discarded"] + in_flight
    assert facts["frames"] == 45


# ---- 3: versions


@pytest.mark.parametrize(("kind", "place"), [*product(KINDS, PLACES), ("async", "ray")])
def test_law_3_every_fragment_has_the_one_version_that_acted(kind, place):
    """Actions say which weights acted; training goes on in another thread meanwhile."""
    stop = threading.Event()
    with fleet(kind, policy=Always(), backend=place, prefetch=1) as collector:

        def train():
            while not stop.is_set():
                collector.update_policy_weights_(weights((collector.policy_version + 1) % 3))

        training, last = InThread(train), {}
        for batch in drawn(collector, 30):
            for life, rows in by_life([batch]).items():
                (version,) = rows[VERSION].unique().tolist()
                assert rows["action"].unique().tolist() == [version % 3]
                assert version >= last.get(life, 0)
                last[life] = version
            assert len(batch[VERSION].unique()) == 1, "the shares of a batch were asked for with several versions"
        stop.set()
        assert training.join().error is None
        oldest = collector.stats()["policy_version_min"]  # a fragment that is there, but not drawn, may be newer
        heard_of_all = len(last) == 2  # if asynchronous, one may be first thirty times
        assert (min(last.values()) if heard_of_all else 0) <= oldest <= collector.policy_version


@pytest.mark.parametrize("place", PLACES)
def test_law_3_holds_for_weights_by_worker_and_for_new_lives(place, tmp_path):
    lives = Lives(tmp_path, {1: [[Fault("exit", step=8)]]}, num_envs=2, counting=LONG)
    with fleet(sources=lives.sources(2), policy=Always(), backend=place) as collector:
        collector.update_policy_weights_({0: weights(1), 1: weights(2)})
        first = collector.next()
        collector.update_policy_weights_(weights(0), worker_ids=0)
        second = collector.next()
        assert collector.stats()["restarts"] == 1
        assert collector.policy_version == 2
    for batch, actions, versions in ((first, [1, 2], [1, 1]), (second, [0, 2], [2, 1])):
        assert [row.unique().tolist() for row in batch["action"]] == [[action] for action in actions]
        assert [row.unique().tolist() for row in batch[VERSION]] == [[version] for version in versions]


# ---- 5: weights change between fragments


@pytest.mark.parametrize("place", ["thread", "process"])
def test_law_5_weights_change_only_between_fragments(place, gate):
    sources = [lambda: Held(gate, at=3), lambda: CountingEnv(1, LONG)]
    policy = Always(1)
    with fleet(sources=sources, policy=policy, backend=place, envs_per_worker=None, frames_per_batch=10) as collector:
        drawing = InThread(collector.next)
        gate.await_arrival()
        collector.update_policy_weights_(weights(2))
        with torch.no_grad():
            policy.weight.fill_(0)
        gate.open()
        assert drawing.join().value["action"].unique().tolist() == [1]
        assert collector.next()["action"].unique().tolist() == [2]
    assert not policy.weight.is_shared()


# ---- 6: exceptions


class Own(Exception):
    pass


def breaks(error):
    class Breaking(CountingEnv):
        def step(self, action):
            if self.mark.step == 3 and not hasattr(self, "broke"):
                self.broke = True
                raise error
            return super().step(action)

    return Breaking


@pytest.mark.parametrize(("kind", "place"), [*product(KINDS, PLACES), ("sync", "ray")])
def test_law_6_an_exception_leaves_as_its_own_type_with_one_note_and_the_service_is_usable(kind, place):
    sources = [CountingEnvs(LONG), lambda: breaks(Own("mine"))(1, LONG)]
    with fleet(kind, sources, backend=place, envs_per_worker=1, seed=7) as collector:
        seed = collector.get_distant_attr("env.seeds[-1]")[1]
        collector.increment_version()
        with pytest.raises(Own, match="mine") as caught:
            drawn_until(collector, lambda _: False)
        assert type(caught.value) is Own
        (note,) = caught.value.__notes__
        assert note.startswith(
            f"raised by env 0 (seed {seed}) of worker 1 (life 0, policy version 1)\nremote traceback:\n"
        )
        assert re.search(r"raise error\n.*Own: mine$", note, re.DOTALL)
        assert note.count("raised by env 0") == 1
        batches = drawn_until(collector, lambda batch: 1 in made_by(batch))
        stats = collector.stats()
    check_lives(batches, LONG, gaps=True)
    assert by_life(batches)[1, 0]["observation"][..., 1].unique().tolist() == [2], "new episodes were not begun"
    assert (stats["env_errors"], stats["fragments_lost"], stats["restarts"]) == (1, 1, 0)
    assert stats["frames_discarded"] == 3
    with pytest.raises(Closed):
        collector.next()


def test_law_6_what_cannot_be_rebuilt_here_is_a_remote_failure():
    sources = [lambda: breaks(Odd("a", second="b"))(0, LONG), CountingEnvs(LONG, first=1)]
    with fleet(sources=sources, envs_per_worker=1) as collector:
        with pytest.raises(RemoteFailure, match=r"Odd: a b") as caught:
            collector.next()
        assert caught.value.type_name.endswith("Odd")
        assert "in step" in caught.value.traceback
        assert collector.next().shape == (2, 1, 10)


# ---- 7: deadlines


def test_law_7_a_worker_that_hangs_is_late_and_replaced(tmp_path, caplog):
    lives = Lives(tmp_path, {1: [[Fault("hang", step=8)]]}, num_envs=2, counting=LONG)
    with fleet(sources=lives.sources(2), fragment_timeout_s=3.0) as collector:
        batches = drawn(collector, 3)
        stats = collector.stats()
    check_lives(batches, LONG)
    assert stats["late"] == stats["restarts"] == stats["fragments_lost"] >= 1, "more where the machine is too busy"
    message = r"worker 1 \(life 0\) was killed: collect\(\) took longer than .*=3; life 1 begins"
    assert len(re.findall(message, caplog.text)) == 1


@pytest.mark.parametrize("place", ["process", "ray"])
def test_law_7_control_calls_say_who_is_late(place, gate):
    sources = [lambda: Held(gate, at=3), lambda: CountingEnv(1, LONG)]
    options = {"envs_per_worker": None, "frames_per_batch": 10, "backend": place}
    with fleet(sources=sources, **options) as collector:
        drawing = InThread(collector.next)
        gate.await_arrival()
        with pytest.raises(WorkerLate, match=r"\[0(, 1)?\].*within 0\.2 s") as caught:
            collector.update_policy_weights_(Always(), wait=True, timeout_s=0.2)
        assert (caught.value.workers[0], caught.value.deadline) == (0, 0.2)
        assert collector.policy_version == 1
        gate.open()
        assert drawing.join().value.shape == (2, 5)


# ---- 8: shutdown


def test_law_8_shutdown_closes_envs_and_leaves_no_process_thread_descriptor_or_memory(tmp_path):
    """Batches are so large that their arrays travel in blocks of shared memory."""
    book, before = Notebook(tmp_path / "closed"), left()

    class Closing(CountingEnv):
        def close(self):
            book(self.mark.env)

    for kind in [*KINDS] * 2:
        sources = [lambda i=i: Closing(i, LONG) for i in range(3)]
        frames = 6_000 if kind == "sync" else 2_000  # the same of every worker
        collector = fleet(kind, sources, Always(), envs_per_worker=None, frames_per_batch=frames)
        drawn(collector, 1)
        collector.update_policy_weights_()
        drawn(collector, 1)
        assert len(left()[0] - before[0]) == 3
        collector.shutdown()
        collector.shutdown()
        assert "closed" in repr(collector)
        assert collector.stats()["workers_alive"] == 0
    require_no_more_than(before)
    assert sorted(book.lines) == ["0"] * 4 + ["1"] * 4 + ["2"] * 4


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_law_8_shutdown_during_a_draw_ends_the_fragments_at_their_next_steps(kind, place, gate, tmp_path):
    closed = Notebook(tmp_path / "closed")

    class Noted(Held):
        def close(self):
            closed(self.mark.step)

    sources = [lambda: Noted(gate, at=3), lambda: CountingEnv(1, LONG)]
    collector = fleet(kind, sources, backend=place, envs_per_worker=None, frames_per_batch=10**6)
    drawing = InThread(collector.next)
    gate.await_arrival()
    ending = InThread(collector.shutdown, DEADLINE_S)
    if place != "inline":
        assert isinstance(drawing.join().error, Closed)
    gate.open()
    assert ending.join().error is None
    assert isinstance(drawing.join().error, Closed)
    assert len(closed.lines) == 1, "the env that was stepped was not closed"


def test_law_8_shutdown_kills_who_does_not_answer(gate):
    before = left()
    collector = fleet(sources=[lambda: Held(gate, at=1), CountingEnvs(LONG)], envs_per_worker=1, frames_per_batch=4)
    drawing = InThread(collector.next)
    gate.await_arrival()
    collector.shutdown(timeout=0.1)
    assert isinstance(drawing.join().error, Closed)
    require_no_more_than(before)


# ---- 9: back-pressure


@pytest.mark.parametrize(
    ("kind", "ahead", "place"), [*product(KINDS, (0, 1, 3), ["inline"]), ("sync", 2, "process"), ("async", 3, "thread")]
)
def test_law_9_workers_stand_still_when_nobody_draws(kind, ahead, place, tmp_path):
    book = Notebook(tmp_path / "fragments")
    with fleet(kind, prefetch=ahead, backend=place, pre_collect_hook=lambda: book("made")) as collector:
        collector.get_distant_attr("worker_idx")
        assert book.lines == [], "workers were asked before the first draw"
        drawn(collector, 4)
        collector.get_distant_attr("worker_idx")  # is answered after whatever was asked for
        n_fragments = len(book.lines)
        batches = drawn(collector, 4)
    if kind == "sync":
        assert n_fragments == (4 + ahead) * 2
    else:
        assert 4 <= n_fragments <= 4 + max(ahead, 1) * 2
        assert ahead == 0 or n_fragments == 4 + ahead * 2
    check_lives(batches, LONG, gaps=True)


# ---- 10: seeds


@pytest.mark.parametrize("place", PLACES)
def test_law_10_seeds_of_workers_envs_and_lives_never_coincide(place, tmp_path):
    lives = Lives(tmp_path, {0: [[Fault("exit", episode=1, step=3)], [Fault("exit", episode=1, step=4)]]}, 2, LONG)
    seeds = []
    with fleet(sources=lives.sources(3), backend=place, seed=5, frames_per_batch=30) as collector:
        seeds += seeds_of(collector)
        collector.next()
        assert collector.stats()["restarts"] == 2
        seeds += seeds_of(collector)[::3]
        collector.set_seed(6)
        seeds += seeds_of(collector)
        assert collector.set_seed(7, static_seed=True) == 7
        assert set(seeds_of(collector)) == {7}
    assert None not in seeds
    assert len(set(seeds)) == len(seeds) == 6 + 2 + 6


def seeds_of(collector):
    return [seed for env in (0, 1) for seed in collector.get_distant_attr(f"env[{env}].seeds[-1]")]
