"""The end: closing, twice, from another thread, in the middle of a draw; and interruptions that are no end."""

import gc
import subprocess
import sys
import weakref

import pytest
from collector_toys import KINDS, LONG, Held, InThread, Memory, fleet, make_collector

from counting_vector import CountingVectorEnv
from interrupts import interrupted_at
from swath.collectors import gather, service
from swath.errors import Closed
from swath.group import group
from swath.testing import CountingEnv, CountingEnvs, EnvBroke, Fault, check_lives
from toys import DEADLINE_S


def test_shutdown_closes_the_envs_and_twice_is_fine():
    envs = CountingEnvs(LONG)
    collector = make_collector(envs, envs_per_worker=2)
    collector.next()
    assert collector.shutdown() is None
    assert collector.shutdown() is None
    assert collector.async_shutdown() is None
    assert [env.closed for env in envs.made] == [1, 1]


def test_a_users_instance_is_closed_too_by_default():
    for close_env, closed in ((True, 1), (False, 0)):
        env, vector = CountingEnv(), CountingVectorEnv(2)
        make_collector(env).shutdown(close_env=close_env)
        make_collector(vector).async_shutdown(close_env=close_env)
        assert env.closed == closed
        assert [env.closed for env in vector.envs] == [closed] * 2


def test_a_collector_that_has_delivered_all_frames_no_longer_holds_its_env():
    env = CountingEnv(0, LONG)
    first = make_collector(env, total_frames=20, frames_per_batch=10)
    saved = first.state_dict()
    with pytest.raises(ValueError, match="is stepped by another collector"):
        make_collector(env)
    assert len(list(first)) == 2
    with make_collector(env, frames_per_batch=10) as second:
        assert second.next().numel() == 10
        with pytest.raises(ValueError, match="is stepped by another collector"):
            first.load_state_dict(saved)
        first.shutdown()
        del first
        gc.collect()
        assert env.closed == 0, "the second steps it"
        assert second.next().numel() == 10
    assert env.closed == 1


def test_a_collector_that_goes_on_after_its_end_holds_its_env_again():
    env = CountingEnv(0, LONG)
    with make_collector(env, total_frames=20, frames_per_batch=10) as first:
        saved = first.state_dict()
        assert len(list(first)) == 2
        first.load_state_dict(saved)
        with pytest.raises(ValueError, match="is stepped by another collector"):
            make_collector(env)
        assert len(list(first)) == 2


def test_leaving_the_context_shuts_down_whatever_happens():
    env = CountingEnv()
    with pytest.raises(ZeroDivisionError), make_collector(env):
        1 / 0  # noqa: B018
    assert env.closed == 1
    with make_collector() as collector:
        assert collector.next().numel() == 10
    with pytest.raises(Closed):
        collector.next()


def test_an_error_of_closing_is_raised_once_by_default():
    envs = CountingEnvs(LONG, {0: [Fault("raise_at_close")]})
    collector = make_collector(envs, envs_per_worker=2)
    with pytest.raises(EnvBroke, match="raised when it was closed"):
        collector.shutdown()
    assert [env.closed for env in envs.made] == [1, 1], "the others are closed all the same"
    collector.shutdown()
    envs = CountingEnvs(LONG, {0: [Fault("raise_at_close")]})
    collector = make_collector(envs, envs_per_worker=2)
    collector.shutdown(raise_on_error=False)
    assert [env.closed for env in envs.made] == [1, 1]


def test_shutdown_during_a_draw_in_another_thread_ends_it_with_closed(gate):
    env = Held(gate, at=3)
    collector = make_collector(env, frames_per_batch=10**6)
    drawing = InThread(collector.next)
    gate.await_arrival()
    closing = InThread(collector.shutdown)
    gate.open()
    assert isinstance(drawing.join().error, Closed)
    assert closing.join().error is None
    assert env.closed == 1
    assert env.mark.step < 10**4, "the fragment of a million steps went on"
    assert collector.stats()["frames_discarded"] >= 3


def test_a_second_thread_that_draws_is_refused(gate):
    env = Held(gate, at=3)
    with make_collector(env) as collector:
        drawing = InThread(collector.next)
        gate.await_arrival()
        with pytest.raises(RuntimeError, match="one thread draws at a time"):
            collector.next()
        gate.open()
        assert drawing.join().value.shape == (10,)
        assert collector.next().shape == (10,)


def test_a_control_call_waits_for_the_running_fragment(gate):
    env = Held(gate, at=3)
    with make_collector(env) as collector:
        drawing = InThread(collector.next)
        gate.await_arrival()
        asking = InThread(collector.state_dict)
        gate.open()
        assert drawing.join().value.shape == (10,)
        assert asking.join().value["traj_pool"]["traj_id"] == 1


@pytest.mark.parametrize("where", ["env", "hook"])
def test_ctrl_c_leaves_the_draw_and_the_collector_is_usable(where):
    pressed = []

    def press(*_):
        if not pressed:
            pressed.append(1)
            raise KeyboardInterrupt

    class Env(CountingEnv):
        def step(self, action):
            if where == "env" and self.mark.step == 2:
                press()
            return super().step(action)

    options = {"post_collect_hook": press} if where == "hook" else {}
    with make_collector(lambda: Env(0, LONG), total_frames=20, **options) as collector:
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        assert collector.stats()["frames"] == 0
        assert collector.stats()["frames_discarded"] == (2 if where == "env" else 10)
        assert len(list(collector)) == 2
        assert collector.stats()["frames"] == 20


OURS = {module.__file__ for module in (service, gather, group)}
STRIDE = 131


@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"trajs_per_batch": 1, "max_frames_per_traj": 3}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_anywhere_leaves_the_draw_and_the_run_reaches_its_end(kind, options):
    at, came = 7, True
    while came:
        at += STRIDE
        with fleet(kind, backend="inline", total_frames=60, **options) as collector:
            batch, came = interrupted_at(at, collector.next, OURS)
            batches = [*([] if came else [batch]), *collector]
            stats = collector.stats()
        frames = sum(batch.numel() for batch in batches)
        assert stats["frames"] >= 60, f"an interrupt at instruction {at} ended the run"
        on_its_way = stats["frames"] - frames  # it was counted, and lost between here and there
        assert on_its_way in (0, stats["requested_frames_per_batch"], 3) if came else on_its_way == 0
        check_lives(batches, LONG, gaps=True)
    assert at > 10 * STRIDE


def test_garbage_is_closed():
    env = CountingEnv()
    collector = make_collector(env, replay_buffer=Memory())
    collector.start()
    thread = collector._background._thread
    reference = weakref.ref(collector)
    del collector
    gc.collect()
    assert reference() is None
    assert env.closed == 1
    assert not thread.is_alive()


SCRIPT = """
from swath import Collector
from swath.testing import CountingEnv

class Env(CountingEnv):
    def close(self):
        print("closed", flush=True)

class Memory:
    def extend(self, td):
        pass

started = Collector(Env, frames_per_batch=10, replay_buffer=Memory())
started.start()
drawn = Collector(Env, frames_per_batch=10)
drawn.next()
fresh = Collector(Env, frames_per_batch=10)
"""


def test_the_interpreters_exit_closes_what_is_open():
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    child = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (child.returncode, child.stdout, child.stderr) == (0, "closed\n" * 3, "")
