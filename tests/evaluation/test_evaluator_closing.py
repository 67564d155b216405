"""Envs that resist being closed, and who closes those that no life has closed."""

import logging
import threading

import pytest
from eval_mischief import Mischief, TokenEnv, TokenPolicy, evaluator

from swath.errors import Closed, WorkerLost
from swath.evaluators import Evaluator


class Jammed(TokenEnv):
    """Raises when it is closed, once it is closed."""

    def close(self):
        super().close()
        raise OSError("the simulator is gone")


class Slow(TokenEnv):
    """Is not closed before it may be."""

    def __init__(self, mischief):
        super().__init__(mischief)
        self.may = threading.Event()

    def close(self):
        self.may.wait()


@pytest.fixture
def mischief(tmp_path):
    return Mischief.at(tmp_path)


def errors_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_shutdown_logs_what_closing_raises_also_where_nothing_was_evaluated(mischief, caplog):
    env = Jammed(mischief)
    ev = Evaluator(env, TokenPolicy())
    ev.shutdown()
    assert env.closed
    assert ev.closed
    assert errors_in(caplog) == ["an env of an evaluation raised when it was closed"]


def test_shutdown_does_not_wait_for_ever_for_an_env_that_was_never_used(mischief):
    env = Slow(mischief)
    ev = Evaluator(env, TokenPolicy())
    with pytest.warns(UserWarning, match="left behind: swath eval closes"):
        ev.shutdown(timeout=0.1)
    env.may.set()
    for thread in threading.enumerate():
        if thread.name == "swath eval closes":
            thread.join()


@pytest.mark.parametrize(
    "built", [{"policy": TokenPolicy()}, {"policy_factory": TokenPolicy}], ids=["policy", "factory"]
)
def test_an_instance_is_closed_also_where_its_last_life_has_ended_itself(mischief, built):
    mischief.order("step", "exit", times=2)
    env = TokenEnv(mischief)
    with Evaluator(env, **built, num_trajectories=3) as ev, pytest.raises(WorkerLost):
        ev.evaluate()
    assert env.closed


@pytest.mark.parametrize("place", ["thread", "process"])
def test_after_shutdown_nothing_is_taken_and_unread_results_stay(place, warm_processes):
    ev = evaluator(None, place)
    ev.trigger_eval()
    while ev.pending:
        threading.Event().wait(0.01)
    ev.shutdown()
    ev.shutdown()
    assert ev.closed
    for ask in (ev.trigger_eval, ev.evaluate):
        with pytest.raises(Closed):
            ask()
    assert ev.poll().lengths.sum() > 0
    assert ev.wait() is None
    assert not [thread for thread in threading.enumerate() if "eval" in thread.name]
