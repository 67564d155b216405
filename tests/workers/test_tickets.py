"""Tickets: settled once, waited for by any thread."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from swath.workers.outcome import Error, Value
from swath.workers.tickets import Board, Name, Ticket


def ticket(index=0):
    return Ticket(Name(index, 0), "method")


def test_the_first_outcome_stays():
    board, one = Board(), ticket()
    assert not one.done
    assert board.settle(one, Value(1))
    assert not board.settle(one, Value(2))
    assert one.value == 1


def test_an_error_is_raised_where_the_value_is_asked_for():
    board, one = Board(), ticket()
    board.settle(one, Error(KeyError("gone")))
    with pytest.raises(KeyError, match="gone"):
        _ = one.value


def test_a_value_that_is_not_there_yet_is_not_given():
    with pytest.raises(AssertionError, match="wait for the ticket first"):
        _ = ticket().value


def test_those_that_are_done_come_in_the_order_in_which_they_were_given():
    board, tickets = Board(), [ticket(index) for index in range(4)]
    for index in (3, 1):
        board.settle(tickets[index], Value(index))
    assert board.wait(tickets) == [tickets[1], tickets[3]]


def test_a_wait_ends_when_another_thread_settles():
    board, tickets, waiting = Board(), [ticket(), ticket()], threading.Event()

    def never():
        waiting.set()
        return False

    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(board.wait, tickets, 30.0, never)
        assert waiting.wait(30.0)
        board.settle(tickets[1], Value(None))
        assert waiter.result(30.0) == [tickets[1]]


def test_an_interrupt_that_the_system_gives_to_another_thread_ends_a_wait():
    waiting = threading.Event()

    def interrupt():
        assert waiting.wait(30.0)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            Board().wait([ticket()], None, waiting.set)


def test_a_wait_ends_at_its_deadline_with_nothing():
    assert Board().wait([ticket()], 0.0) == []


def test_who_is_interrupted_already_does_not_wait():
    assert Board().wait([ticket()], None, lambda: True) == []
