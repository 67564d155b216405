"""Tickets: settled once, waited for by any thread."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from swath.workers.tickets import Board, Name, Ticket


def ticket(index=0):
    return Ticket(Name(index, 0), "method")


def test_an_interrupt_that_the_system_gives_to_another_thread_ends_a_wait():
    waiting = threading.Event()

    def interrupt():
        assert waiting.wait(30.0)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            Board().wait([ticket()], None, waiting.set)
