"""Frames over sockets: whole, in order, with their descriptors, and an end that is noticed."""

import contextlib
import os
import socket
import threading
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interrupts import interrupted_at
from swath.testing.backend.asking import descriptors
from swath.workers.process import wire
from swath.workers.process.wire import Ended, Frame, Wire

FRAMES = st.lists(st.tuples(st.binary(max_size=200_000), st.integers(0, 5)), max_size=12)


def wires(*, patient=True):
    left, right = socket.socketpair()
    return Wire(left, patient=patient), Wire(right, patient=True)


def numbered_files(numbers):
    """Descriptors of memory that holds a number each."""
    fds = []
    for number in numbers:
        fds.append(os.memfd_create("number"))
        os.write(fds[-1], bytes([number]))
    return fds


def numbers_in(fds):
    numbers = []
    for fd in fds:
        numbers.append(os.pread(fd, 1, 0)[0])
        os.close(fd)
    return numbers


@settings(max_examples=30, deadline=None)
@given(FRAMES)
def test_frames_come_whole_in_order_and_with_their_own_descriptors(frames):
    here, there = wires()
    counter = iter(range(100))
    wanted = [(body, [next(counter) for _ in range(n_fds)]) for body, n_fds in frames]

    def send():
        for body, numbers in wanted:
            assert here.send(body, numbered_files(numbers))

    sender = threading.Thread(target=send)
    sender.start()
    came = [there.receive() for _ in wanted]
    sender.join()
    assert [(frame.body, numbers_in(frame.fds)) for frame in came] == wanted
    here.close()
    there.close()


def test_what_does_not_fit_is_kept_until_there_is_room():
    here, there = wires(patient=False)
    body = os.urandom(5_000_000)
    fits = here.send(body, numbered_files([7]))
    assert not fits
    assert not here.send(b"next")
    came = []
    while not here.flush():
        came.extend(there.arrived())
    came.extend(there.arrived(all_of_it=True))
    assert [frame.body for frame in came] == [body, b"next"]
    assert numbers_in(came[0].fds) == [7]
    here.close()
    there.close()


def test_nothing_is_there_before_something_was_sent():
    here, there = wires()
    assert list(there.arrived()) == []
    here.send(b"one")
    here.send(b"two")
    assert [frame.body for frame in there.arrived()] == [b"one", b"two"]
    here.close()
    there.close()


def test_the_end_comes_after_the_last_frame():
    here, there = wires()
    here.send(b"last")
    here.close()
    arrived = there.arrived()
    assert next(arrived) == Frame(b"last", [])
    with pytest.raises(Ended):
        list(there.arrived(all_of_it=True))
    with pytest.raises(Ended):
        there.receive()
    with pytest.raises(Ended):
        there.send(b"nobody reads it")
    there.close()


def test_a_frame_that_was_broken_off_is_none():
    left, right = socket.socketpair()
    there = Wire(right, patient=True)
    here = Wire(left, patient=True)
    here.send(b"x" * 100)
    whole = right.recv(1000)
    left.sendall(whole[:50])
    here.close()
    with pytest.raises(Ended):
        there.receive()
    there.close()


def test_what_is_no_frame_is_an_error():
    left, right = socket.socketpair()
    left.sendall(b"GET / HTTP/1.1\r\n\r\n")
    there = Wire(right, patient=True)
    with pytest.raises(OSError, match="out of step"):
        there.receive()
    left.close()
    there.close()


def test_an_interrupt_anywhere_in_sending_loses_no_frame_that_was_begun_and_sends_none_twice():
    """Between any two instructions, one after another."""
    at, seen = 0, set()
    while True:
        at += 1
        here, there = wires()
        _, came = interrupted_at(at, partial(here.send, b"first", numbered_files([1])), {wire.__file__})
        if not came:
            break
        here.send(b"second", numbered_files([2]))
        here.close()
        came = tuple((body, *numbers_in(fds)) for body, fds in until_end(there))
        there.close()
        seen.add(came)
    second = ((b"second", 2),)
    assert seen == {second, ((b"first", 1), *second)}
    here.close()
    there.close()
    assert at > 50


def until_end(wire):
    with contextlib.suppress(Ended):
        while True:
            yield wire.receive()


def test_descriptors_that_come_are_closed_on_exec():
    here, there = wires()
    here.send(b"", numbered_files([1]))
    (fd,) = there.receive().fds
    assert not os.get_inheritable(fd)
    os.close(fd)
    here.close()
    there.close()


def test_a_wire_that_is_closed_closes_what_was_on_its_way():
    before = descriptors()
    here, there = wires(patient=False)
    here.send(b"x" * 5_000_000, numbered_files([1]))
    here.send(b"", numbered_files([2, 3]))
    next(there.arrived(), None)
    here.close()
    there.close()
    assert descriptors() == before
