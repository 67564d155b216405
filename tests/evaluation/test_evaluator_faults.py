"""Failures of an evaluation: the caller's exception, the counts, and a next evaluation that works."""

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from eval_mischief import Broke, Mischief, UnrulyEnv, UnrulyPolicy, evaluator

from swath.errors import Closed, WorkerLate, WorkerLost
from swath.evaluators import Evaluator
from toys import DEADLINE_S, becomes, end, first_in_time
from traces import left, require_no_more_than

pytestmark = pytest.mark.usefixtures("fork_server")

PLACES = ["thread", "process"]
TRUTH = []


@pytest.fixture(autouse=True, scope="module")
def truth():
    with evaluator() as ev:
        TRUTH[:] = ev.evaluate().returns.tolist()
    gc.freeze()  # a collection in all modules after each test would take a tenth of a second
    yield
    gc.unfreeze()


@pytest.fixture
def mischief(tmp_path, nothing_is_left):
    mischief = Mischief.at(tmp_path)
    yield mischief
    mischief.gate.open()


@pytest.fixture(autouse=True)
def nothing_is_left(fork_server):
    """Check after each test that no process, thread, descriptor or shared memory is left."""
    before = left()
    yield

    def is_nothing_left():
        with suppress(AssertionError):
            require_no_more_than(before)
            return True

    if not becomes(is_nothing_left):  # killed or ending workers may take a moment
        require_no_more_than(before)


def works(ev):
    returns = first_in_time(WorkerLate, ev.evaluate).returns.tolist()
    return returns == TRUTH[: len(returns)]


def join(name):
    """Wait until the threads with this in their names have ended."""
    end(*[thread for thread in threading.enumerate() if name in thread.name])


def counts(ev, **expected):
    stats = ev.stats()
    return {name: stats[name] for name in expected} == expected


def errors_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


# ---- exceptions


@pytest.mark.parametrize("where", ["env", "reset", "step", "policy", "factory"])
@pytest.mark.parametrize("place", PLACES)
def test_an_exception_of_user_code_is_raised_once_and_the_next_evaluation_works(place, where, mischief, caplog):
    mischief.order(where, "raise")
    with evaluator(mischief, place, busy_policy="queue") as ev:
        ev.trigger_eval(step=7)
        with pytest.raises(Broke, match="ordered") as raised:
            ev.wait()
        assert ev.poll() is None
        assert not ev.pending
        assert works(ev)
        assert counts(ev, accepted=2, completed=1, errors=1, retries=0, restarts=0, unread=0)
    notes = "\n".join(raised.value.__notes__)
    assert f"in worker 0 (life 0) of an evaluation, backend {place!r}" in notes
    assert ("remote traceback" in notes) is (place != "thread")
    assert errors_in(caplog) == ["the evaluation of step 7 failed: Broke: ordered"]


def test_an_env_that_raised_is_closed_and_an_instance_is_used_again_from_its_reset(mischief):
    built = []

    def env():
        built.append(UnrulyEnv(mischief))
        return built[-1]

    mischief.order("step", "raise")
    with Evaluator(env, UnrulyPolicy(), num_trajectories=6) as ev:
        with pytest.raises(Broke):
            ev.evaluate()
        assert works(ev)
        assert [env.closed for env in built] == [True, False]
    mischief.order("step", "raise")
    instance = UnrulyEnv(mischief)
    with Evaluator(instance, UnrulyPolicy(), num_trajectories=6) as ev:
        with pytest.raises(Broke):
            ev.evaluate()
        assert works(ev)
        assert not instance.closed
    assert instance.closed


@pytest.mark.parametrize("error", [Broke("no"), SystemExit(3)], ids=repr)
def test_an_exception_of_on_result_is_counted_and_the_results_stand(error, caplog):
    faults = [error]

    def on_result(td):
        if faults:
            raise faults.pop()

    with evaluator(None, on_result=on_result) as ev:
        assert works(ev)
        assert works(ev)
        assert counts(ev, completed=2, errors=0, callback_errors=1)
        assert ev.last_callback_error is error
    (message,) = errors_in(caplog)
    assert "on_result raised" in message


# ---- deaths


DEATHS = [
    ("thread", "step", "exit", "SystemExit(3)", 1),
    ("process", "policy", "kill", -9, 1),
    ("process", "factory", "kill", -9, 0),
]
"""Place, order, exit, and counted retries: a worker that cannot start is no part of an evaluation."""


@pytest.mark.parametrize(("place", "where", "action", "end", "counted"), DEATHS)
def test_a_worker_that_dies_is_replaced_and_the_numbers_stay(place, where, action, end, counted, mischief):
    mischief.order(where, action)
    with evaluator(mischief, place, num_workers=1 if place == "thread" else 3) as ev:
        result = ev.evaluate()
        assert (result.returns.tolist(), result.retries) == (TRUTH, counted)
        assert counts(ev, completed=1, errors=0, retries=counted, restarts=1)
        assert works(ev)


@pytest.mark.parametrize(("place", "where", "action", "end", "counted"), DEATHS)
def test_after_more_losses_than_retries_the_loss_is_raised_once(place, where, action, end, counted, mischief):
    mischief.order(where, action, times=2)
    with evaluator(mischief, place) as ev:
        with pytest.raises(WorkerLost, match=r"worker 0 \(life 1\)") as raised:
            ev.evaluate()
        assert raised.value.exit == end
        assert works(ev)
        assert counts(ev, completed=1, errors=1, retries=counted)


def test_a_worker_that_is_killed_while_idle_costs_no_retry_but_a_later_loss_is_raised(mischief):
    with evaluator(mischief, "process", retries=0) as ev:
        for _ in range(2):
            assert works(ev)
            os.kill(mischief.pid, signal.SIGKILL)
        result = ev.evaluate()
        assert (result.returns.tolist(), result.retries) == (TRUTH, 0)
        mischief.order("policy", "kill")
        with pytest.raises(WorkerLost, match=r"worker 0 \(life 0\)"):
            ev.evaluate()
        assert works(ev)
        assert counts(ev, completed=4, errors=1, retries=0, restarts=3)


# ---- hangs


@pytest.mark.parametrize(("place", "where"), [("thread", "step"), ("process", "policy")])
def test_a_hanging_worker_is_late_and_another_one_continues(place, where, mischief):
    mischief.order(where, "hang")
    with evaluator(mischief, place, timeout_s=1.0, num_trajectories=2) as ev:
        with pytest.raises(WorkerLate, match=r"timeout_s=1") as raised:
            ev.evaluate()
        assert (raised.value.deadline, raised.value.workers) == (1.0, (0,))
        assert works(ev)
        assert counts(ev, completed=1, retries=0)
        if place == "thread":
            with pytest.warns(UserWarning, match=r"left behind: swath worker 0 \(life \d+\), abandoned"):
                ev.shutdown(timeout=0.0)
    mischief.gate.open()
    join("abandoned")


def test_an_instance_that_hangs_cannot_be_used_until_its_call_returns(mischief):
    mischief.order("step", "hang")
    with Evaluator(UnrulyEnv(mischief), UnrulyPolicy(), timeout_s=1.0, num_trajectories=2) as ev:
        messages = []
        for _ in range(4):
            with pytest.raises(WorkerLate) as raised:
                ev.evaluate()
            messages.append(str(raised.value))
        assert "timeout_s=1" in messages[0]
        assert all("still in a call" in message for message in messages[2:]), (
            "a busy machine is late once before the env hangs"
        )
        mischief.gate.open()

        def evaluate_after_its_return():
            join("abandoned")
            return ev.evaluate()

        assert first_in_time(WorkerLate, evaluate_after_its_return).returns.tolist() == TRUTH[:2]


@pytest.mark.parametrize("place", PLACES)
def test_a_worker_that_is_not_up_in_time_is_late(place, mischief):
    mischief.order("factory", "hang")
    with evaluator(mischief, place, start_timeout_s=1.0, num_trajectories=2) as ev:
        with pytest.raises(WorkerLate, match=r"start_timeout_s=1") as raised:
            ev.evaluate()
        assert raised.value.deadline == 1.0
        mischief.gate.open()
        join("abandoned")
        assert works(ev)


# ---- callers


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_cancels_what_the_caller_waits_for(place, mischief):
    mischief.order("step", "hang")

    def interrupt():
        mischief.gate.await_arrival()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with evaluator(mischief, place) as ev:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            ev.evaluate()
        mischief.gate.open()
        assert works(ev)
        assert counts(ev, accepted=2, completed=1, cancelled=1, errors=0)


@pytest.mark.parametrize("place", PLACES)
def test_shutdown_during_an_evaluation_wakes_blocked_callers(place, mischief):
    mischief.order("step", "hang")
    errors = []

    def ask():
        try:
            ev.evaluate()
        except Closed as error:
            errors.append(error)

    ev = evaluator(mischief, place, endless=True, busy_policy="queue")
    ev.trigger_eval()
    mischief.gate.await_arrival()
    asking = threading.Thread(target=ask)
    asking.start()
    mischief.gate.open()
    assert becomes(lambda: ev.stats()["queued"])
    ends = [threading.Thread(target=ev.shutdown) for _ in range(3)]
    for thread in ends:
        thread.start()
    end(*ends, asking)
    assert len(errors) == 1
    assert not ev.pending
    assert ev.poll() is ev.wait() is None


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("within", [True, False], ids=["from on_result", "from outside"])
def test_after_shutdown_requests_are_refused_and_unread_results_stay(place, within):
    ev = evaluator(None, place, on_result=lambda _: ev.shutdown() if within else None)
    ev.trigger_eval()
    assert becomes(lambda: ev.stats()["unread"])
    ev.shutdown()
    ev.shutdown()
    assert ev.closed
    for ask in (ev.trigger_eval, ev.evaluate):
        with pytest.raises(Closed):
            ask()
    assert ev.poll().returns.tolist() == TRUTH
    assert ev.wait() is None


def test_shutdown_does_not_wait_for_workers_that_are_coming_up(mischief):
    mischief.order("factory", "hang")
    ev = evaluator(mischief, "process")
    ev.trigger_eval()
    mischief.gate.await_arrival()
    ev.shutdown()
    assert not ev.pending
    with pytest.raises(Closed):
        ev.trigger_eval()


class Jammed(UnrulyEnv):
    """Raises when it is closed, once it is closed."""

    def close(self):
        super().close()
        raise OSError("the simulator is gone")


def test_shutdown_without_an_evaluation_logs_an_exception_of_close(caplog):
    env = Jammed()
    ev = Evaluator(env, UnrulyPolicy())
    ev.shutdown()
    assert env.closed
    assert ev.closed
    assert errors_in(caplog) == ["an env of an evaluation raised when it was closed"]


def test_shutdown_leaves_an_unused_env_that_hangs_when_closed(gate):
    env = UnrulyEnv()
    env.close = gate.go_through
    ev = Evaluator(env, UnrulyPolicy())
    with pytest.warns(UserWarning, match="left behind: swath eval closes"):
        ev.shutdown(timeout=0.1)
    gate.open()
    join("swath eval closes")


@pytest.mark.parametrize("built", ["policy", "policy_factory"])
def test_an_instance_is_closed_after_its_last_life_has_ended(mischief, built):
    mischief.order("step", "exit", times=2)
    env = UnrulyEnv(mischief)
    policy = {built: UnrulyPolicy() if built == "policy" else UnrulyPolicy}
    with Evaluator(env, **policy, num_trajectories=3) as ev, pytest.raises(WorkerLost):
        ev.evaluate()
    assert env.closed


LEFT_OPEN = """
from pathlib import Path
from eval_mischief import Mischief, evaluator
mischief = Mischief.at(Path.cwd())
mischief.order("step", "hang")
ev = evaluator(mischief, endless=True)
ev.trigger_eval()
mischief.gate.await_arrival()
mischief.gate.open()
print("played")
"""


def test_a_program_ends_during_an_evaluation(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LEFT_OPEN]
    child = subprocess.run(
        command, check=False, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (child.returncode, child.stdout) == (0, "played\n"), child.stderr
