"""Memory that is lent and comes back: what is held is never written, what is free is used again."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swath.testing.backend.asking import descriptors
from swath.workers.process.blocks import Block, Borrower, Lender, extent, filled, mapped, new_memory, offsets


def view_of(*arrays):
    return [memoryview(array) for array in arrays]


@given(st.lists(st.integers(0, 1000)))
def test_buffers_lie_one_after_another_where_any_dtype_may_begin(sizes):
    starts = offsets(sizes)
    assert len(starts) == len(sizes)
    assert all(start % 64 == 0 for start in starts)
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert not sizes or ends[-1] <= extent(sizes)


def test_what_is_written_here_is_seen_there():
    fd = new_memory(200)
    there = mapped(fd, 200, writable=False)
    filled(mapped(fd, 200), view_of(np.arange(3, dtype=np.uint8), np.empty(0, np.uint8), np.full(5, 7, np.uint8)))
    os.close(fd)
    assert there[:3].tolist() == [0, 1, 2]
    assert there[64:69].tolist() == [7] * 5
    assert not there.flags.writeable


def test_memory_stays_while_a_view_of_it_lives_and_goes_with_the_last():
    before = descriptors()
    fd = new_memory(100)
    part = mapped(fd, 100)[10:20]
    os.close(fd)
    part[:] = 3
    assert part.sum() == 30
    del part
    assert descriptors() == before


class Lending(RuleBasedStateMachine):
    """A lender and a borrower, and what was written where."""

    def __init__(self):
        super().__init__()
        self.lender, self.borrower = Lender(), Borrower(writable=False)
        self.known, self.held, self.stamp = set(), {}, 0
        self.most_held = 0

    @rule(size=st.sampled_from([1, 5_000, 20_000, 100_000]))
    def lend(self, size):
        self.stamp += 1
        block = self.lender.write(view_of(np.full(size, self.stamp % 251, dtype=np.uint8)))
        if block.id not in self.known:
            self.known.add(block.id)
            self.borrower.learn([(block.id, block.size)], iter([os.dup(block.fd)]))
        self.borrower.forget(self.lender.gone(self.known))
        assert block.id not in self.held
        self.held[block.id] = self.stamp % 251, size
        self.most_held = max(self.most_held, len(self.held))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data):
        block = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[block]
        self.lender.returned.append(block)

    @invariant()
    def what_is_held_is_as_it_was_written(self):
        for block, (stamp, size) in self.held.items():
            assert set(np.unique(self.borrower[block][:size])) == {stamp}

    @invariant()
    def blocks_are_used_again(self):
        assert len(self.known) <= self.most_held + 2

    def teardown(self):
        self.lender.close()
        self.borrower.close()


Lending.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLending = Lending.TestCase


def test_a_block_with_several_holders_is_free_when_all_have_returned_it():
    lender = Lender()
    block = lender.write(view_of(np.ones(10, np.uint8)))
    block.holders += 1
    lender.returned.append(block.id)
    other = lender.write(view_of(np.full(10, 2, np.uint8)))
    assert other is not block
    lender.returned.append(block.id)
    assert lender.write(view_of(np.full(10, 3, np.uint8))) is block
    lender.close()


def test_memory_that_cannot_be_had_raises_and_leaves_no_descriptor():
    before = descriptors()
    with pytest.raises(OSError, match="allocate"):
        Block(1, 1 << 62)
    assert descriptors() == before
