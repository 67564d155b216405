"""What happens when workers die, hang, do not come, come back as something else, or their envs raise: row by row."""

import logging
import os
import re
import signal

import pytest
import torch
from collector_toys import KINDS, LONG, PLACES, Always, InThread, Memory, drawn, drawn_until, fleet, made_by, weights

from swath import Restarts
from swath.errors import Closed, FleetFailed, PlacementFailed, WorkerLost
from swath.testing import Counting, CountingEnv, CountingEnvs, EnvBroke, Fault, Lives, by_life, check_lives
from swath.workers.tickets import Received
from toys import first_in_time

pytestmark = pytest.mark.usefixtures("fork_server")

NEVER = Restarts(0)


def lives(path, script, n_workers=2, num_envs=2, **options):
    path.mkdir(exist_ok=True)
    return Lives(path, script, num_envs, options.pop("counting", LONG), **options).sources(n_workers)


def kill(collector, worker):
    os.kill(collector.collection.group.fleet.up[worker].pid, signal.SIGKILL)


# ---- a worker dies


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_worker_that_is_killed_is_replaced_and_no_fragment_is_lost(kind, caplog):
    with fleet(kind, prefetch=0) as collector:
        batches = drawn(collector, 2)
        life = collector.collection.group.fleet.handle(1)
        kill(collector, 1)
        batches += drawn_until(collector, lambda batch: (1, 1) in by_life([batch]))
        stats = collector.stats("both")
    assert isinstance(life.ended.outcome.exception, WorkerLost)
    check_lives(batches, LONG)
    assert (stats["restarts"], stats["worker_0/life"], stats["worker_1/life"]) == (1, 0, 1)
    assert stats["fragments_lost"] <= 1
    (record,) = [record for record in caplog.records if record.name == "swath" and record.levelno == logging.WARNING]
    assert "worker 1 (life 0) was killed by SIGKILL; life 1 begins at once (restart 1 of 5)" in record.getMessage()


def test_asynchronous_collection_serves_the_others_while_a_worker_comes_back(tmp_path, gate):
    first = tmp_path / "first"

    def slow_to_come_back():
        if not first.exists():
            first.touch()
            return CountingEnv(0, LONG, [Fault("exit", step=7)])
        gate.go_through()
        return CountingEnv(0, LONG)

    with fleet("async", [slow_to_come_back, CountingEnvs(LONG, first=1)], envs_per_worker=1) as collector:
        batches = drawn_until(collector, lambda _: collector.stats()["restarts"] == 1)
        gate.await_arrival()
        meanwhile = drawn(collector, 5)
        assert "1 restarting (life 1 of 5)" in repr(collector)
        assert collector.stats()["workers_alive"] == 1
        gate.open()
        batches += meanwhile
        batches += drawn_until(collector, lambda batch: (0, 1) in by_life([batch]))
        assert collector.stats()["workers_alive"] == 2
    assert {worker for batch in meanwhile for worker in made_by(batch)} == {1}
    check_lives(batches, LONG)


# ---- and cannot be replaced


@pytest.mark.parametrize("place", PLACES)
def test_the_others_collect_the_row_of_a_worker_that_is_gone_in_turn(place, tmp_path):
    sources = lives(tmp_path, {1: [[Fault("exit", step=7)]]}, 3)
    options = {"restarts": NEVER, "min_workers": 1, "frames_per_batch": 30, "backend": place}
    with fleet(sources=sources, **options) as collector:
        batches = drawn(collector, 6)
        stats = collector.stats("both")
        assert "1 gone" in repr(collector)
    assert {batch.shape for batch in batches} == {(3, 2, 5)}
    rows = [made_by(batch)[::2] for batch in batches]
    assert rows[0] == [0, 1, 2]
    assert [(row[0], row[2]) for row in rows[1:]] == [(0, 2)] * 5
    assert {row[1] for row in rows[1:]} == {0, 2}, "one of the others did it all"
    check_lives(batches, LONG)
    assert (stats["workers_lost"], stats["restarts"], stats["workers"], stats["workers_alive"]) == (1, 0, 3, 2)
    assert stats["worker_1/state"] == "gone"


# ---- fewer than min_workers


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_too_few_workers_end_the_run_with_all_causes(kind, place, tmp_path):
    script = {0: [[Fault("exit", step=7)]], 1: [[Fault("exit", step=7)], [Fault("raise_at_build")]]}
    options = {"restarts": Restarts(1, backoff_s=0.0), "min_workers": 2, "backend": place, "frames_per_batch": 30}
    script[0].append(script[0][0])
    with fleet(kind, lives(tmp_path, script, 3), Always(3), **options) as collector:
        collector.update_policy_weights_(weights(2))
        with pytest.raises(FleetFailed) as failed:
            drawn(collector, 1000)
        for _ in range(2):
            with pytest.raises(FleetFailed, match=r"1 of 3 workers are left, and min_workers=2 are needed"):
                collector.next()
        causes = failed.value.causes
        stats = collector.stats()
        saved = collector.state_dict()
        assert "2 gone" in repr(collector)
    assert sorted(type(cause).__name__ for cause in causes) == ["EnvBroke", "WorkerLost", "WorkerLost", "WorkerLost"]
    assert (stats["workers_lost"], stats["restarts"], stats["workers_alive"]) == (2, 2, 1)
    assert [float(saved[f"worker{worker}"]["policy_state_dict"]["weight"]) for worker in range(3)] == [2.0] * 3
    with pytest.raises(Closed):
        collector.next()


# ---- placement

IN_TIME = {"backend": "thread", "placement_timeout_s": 1.0}
"""A placement deadline that only a busy machine misses."""


def slow_to_begin(gate, number, **like):
    def build():
        gate.go_through()
        return CountingEnv(number, Counting(script=LONG.script, **like))

    return build


def test_a_worker_that_is_not_ready_in_time_fails_the_construction(gate):
    with pytest.raises(PlacementFailed, match=r"of 2 workers \((0, )?1\) were not ready after placement_timeout_s=1"):
        fleet(sources=[CountingEnvs(LONG), slow_to_begin(gate, 1)], envs_per_worker=1, **IN_TIME)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("fault", "note"),
    [("raise_at_build", "the env source .*, env 1"), ("raise_at_reset", "the first reset of env 1")],
)
def test_an_env_that_fails_in_the_construction_is_named_with_its_worker(place, fault, note):
    third = CountingEnvs(LONG, {3: [Fault(fault)]}, first=2)  # envs 2 and 3, of worker 1
    with pytest.raises(EnvBroke, match="env 3") as caught:
        fleet(sources=[CountingEnvs(LONG), third], backend=place, restarts=NEVER).next()
    notes = "\n".join(caught.value.__notes__)
    assert re.search(f"raised by {note}\nraised by the construction of worker 1 .life 0.", notes)


@pytest.mark.parametrize("kind", KINDS)
def test_with_min_workers_it_joins_later(kind, gate):
    sources = [CountingEnvs(LONG), slow_to_begin(gate, 1)]
    options = {"envs_per_worker": 1, "min_workers": 1, "seed": 3, **IN_TIME}
    with pytest.warns(UserWarning, match="the others begin without them"):
        collector = first_in_time(PlacementFailed, fleet, kind, sources, **options)
    with collector:
        assert "1 starting" in repr(collector)
        drawing = InThread(drawn, collector, 4)
        if kind == "async":
            assert {worker for batch in drawing.join().value for worker in made_by(batch)} == {0}
        gate.open()
        batches = drawing.join().value
        if kind == "async":
            batches += drawn_until(collector, lambda batch: made_by(batch) == [1])
        seeds = collector.get_distant_attr("env.seeds[-1]")
        assert collector.stats()["restarts"] == 0
    check_lives(batches, LONG)
    assert None not in seeds
    assert len(set(seeds)) == 2


# ---- replacements that fail


@pytest.mark.parametrize("place", PLACES)
def test_a_replacement_that_cannot_be_built_counts_as_a_life(place, tmp_path):
    script = {0: [[Fault("exit", step=2)], [Fault("raise_at_build")], [Fault("raise_at_reset")], []]}
    with fleet(sources=lives(tmp_path, script), backend=place) as collector:
        check_lives(drawn(collector, 2), LONG)
        assert collector.stats()["restarts"] == 3


class Changing:
    """Builds another object the second time."""

    def __init__(self, path, build):
        self.path, self.build = path, build

    def __call__(self):
        again = self.path.exists()
        self.path.touch()
        return self.build(again)


def env_of(again):
    return CountingEnv(0, Counting("multi_binary" if again else "vector", script=LONG.script), [Fault("exit", step=2)])


def policy_of(again):
    policy = Always()
    if again:
        policy.weight = torch.nn.Parameter(torch.zeros(1))
    return policy


def same_env(again):
    return env_of(False)


OTHERWISE = {
    "env": (
        env_of,
        Always,
        "differs from its earlier life: entry 'observation' is [44] of torch.int8, not [3] of torch.float32",
    ),
    "policy": (same_env, policy_of, "weight has shape"),
}


@pytest.mark.parametrize(("kind", "part"), [("sync", "env"), ("async", "env"), ("sync", "policy")])
def test_a_replacement_that_is_something_else_is_not_used(kind, part, tmp_path):
    env, policy, message = OTHERWISE[part]
    factories = [Changing(tmp_path / "policy", policy) if policy is policy_of else policy, Always]
    sources = [Changing(tmp_path / "env", env), CountingEnvs(LONG, first=1)]
    options = {"envs_per_worker": 1, "restarts": Restarts(1), "policy_factory": factories}
    with fleet(kind, sources, **options) as collector:
        collector.update_policy_weights_(weights(1))
        with pytest.raises(FleetFailed) as failed:
            drawn(collector, 1000)
        assert [type(cause) for cause in failed.value.causes] == [WorkerLost, ValueError]
        assert message in str(failed.value.causes[1])


# ---- the env raises


@pytest.mark.parametrize("place", PLACES)
def test_with_restart_the_worker_is_replaced(place, tmp_path, caplog):
    sources = lives(tmp_path, {0: [{1: [Fault("raise", step=7)]}]})
    with fleet(sources=sources, backend=place, on_env_error="restart") as collector:
        batches = drawn(collector, 3)
        stats = collector.stats()
    check_lives(batches, LONG)
    assert {life: td.shape[-1] for life, td in by_life(batches).items()} == {(0, 0): 5, (0, 1): 10, (1, 0): 15}
    assert (stats["restarts"], stats["env_errors"], stats["fragments_lost"]) == (1, 1, 1)
    assert (stats["frames_discarded"], stats["worker_frames"]) == (2, 62), "frames that were lost were collected"
    assert "worker 0 (life 0) failed: EnvBroke: env 1 raised at step 7" in caplog.text


# ---- the policy, a hook, postproc or extend raises


def flaw(at):
    """Return a function that raises when it is called for the nth time."""
    calls = []

    def function(*args):
        calls.append(1)
        if len(calls) == at:
            raise ArithmeticError("flawed")
        return args[0] if args else None

    return function


def flawed_policy(at):
    once = flaw(at)

    def policy(observation):
        return once(torch.zeros(observation.shape[:-1], dtype=torch.int64))

    return policy


FLAWS = {
    # keyword: (function that raises, how often, lost frames, note)
    "policy_factory": ([lambda: flawed_policy(9), lambda: flawed_policy(10**6)], 1, 4, "raised while {} collected"),
    "pre_collect_hook": (flaw(2), 2, 0, "raised by pre_collect_hook in {}"),
    "post_collect_hook": (flaw(2), 2, 20, "raised by post_collect_hook in {}"),
    "postproc": (flaw(2), 1, 20, "raised by postproc"),
}


@pytest.mark.parametrize("name", FLAWS)
def test_what_functions_of_the_user_raise_leaves_as_itself_and_loses_that_fragment(name):
    function, times, discarded, note_start = FLAWS[name]
    note_start = note_start.format("worker 0 (life 0, policy version 0)") + "\nremote traceback:\n" * (
        name != "postproc"
    )
    with fleet(**{name: function}) as collector:
        batches, notes = [collector.next()], []
        for _ in range(times):
            with pytest.raises(ArithmeticError, match="flawed") as caught:
                collector.next()
            notes += caught.value.__notes__
        batches += drawn(collector, 3)
        stats = collector.stats()
    assert len(notes) == times
    assert [note for note in notes if note.startswith(note_start)]
    check_lives(batches, LONG, gaps=True)
    assert stats["frames_discarded"] == discarded
    assert stats["worker_frames"] == stats["frames"] + discarded, "frames that were lost were collected"
    assert (stats["frames"], stats["batches"], stats["env_errors"]) == (80, 4, 0)


@pytest.mark.parametrize(("kind", "written"), [("sync", 1), ("async", 0)])
def test_what_extend_raises_leaves_as_itself_and_what_was_written_counts(kind, written):
    buffer = Memory(raises_at=1 if kind == "sync" else 0)
    with fleet(kind, replay_buffer=buffer, backend="inline") as collector:
        with pytest.raises(OSError, match="disk full") as caught:
            collector.next()
        assert caught.value.__notes__ == ["raised by extend() of the replay buffer"]
        assert len(buffer.written) == written
        assert collector.next() is None
        stats = collector.stats()
    assert stats["frames"] == buffer.frames == sum(td.numel() for td in buffer.written)
    assert stats["frames_discarded"] == 10


# ---- stores lose fragments


@pytest.mark.parametrize("kind", KINDS)
def test_a_fragment_that_its_store_has_lost_is_asked_for_again(kind, monkeypatch):
    lost = iter([False, True, False, False, True])
    opened = Received.open

    def open_or_lose(self):
        if next(lost, False):
            self.close()
        return opened(self)

    monkeypatch.setattr(Received, "open", open_or_lose)
    with fleet(kind, backend="inline") as collector:
        batches = drawn(collector, 6)
        stats = collector.stats()
    check_lives(batches, LONG, gaps=True)
    assert (stats["fragments_lost"], stats["restarts"]) == (2, 0)
    assert stats["frames"] == sum(batch.numel() for batch in batches)
