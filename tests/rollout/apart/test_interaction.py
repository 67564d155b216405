"""The interaction type of a thread apart and that of all others: neither is ever seen on the other side."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict.nn import InteractionType, set_interaction_type
from tensordict.nn.probabilistic import interaction_type

from swath.rollout.apart import apart

RANDOM, MEAN, MODE = InteractionType.RANDOM, InteractionType.MEAN, InteractionType.MODE
LEAVE, APART = "leave", "apart"


class Follower:
    """A thread that enters and leaves contexts when it is told to; knows the type that each should bring."""

    def __init__(self):
        self._pool, self._entered = ThreadPoolExecutor(1), []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self._entered:
            self.leave()
        self._pool.shutdown()

    @property
    def inside(self):
        return bool(self._entered)

    @property
    def expected(self):
        return self._entered[-1][1] if self._entered else None

    def seen(self):
        return self._pool.submit(interaction_type).result()

    def set(self, kind):
        self._enter(set_interaction_type(kind), kind)

    def go_apart(self):
        self._enter(apart(1), None)

    def leave(self):
        self._pool.submit(self._entered.pop()[0].__exit__, None, None, None).result()

    def _enter(self, context, kind):
        self._pool.submit(context.__enter__).result()
        self._entered.append((context, kind))


orders = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([RANDOM, MEAN, None, LEAVE, APART])), max_size=25)


@settings(deadline=None)
@given(orders)
def test_no_interleaving_shows_one_thread_the_type_of_another(orders):
    with Follower() as training, Follower() as one, Follower() as other:
        for who, what in orders:
            thread = (training, one, other)[who]
            if what is APART and thread is not training:
                thread.go_apart()
            elif what is LEAVE and thread.inside:
                thread.leave()
            elif what not in (APART, LEAVE) and (thread is training or thread.inside):
                thread.set(what)
            assert training.seen() is training.expected
            for evaluator in (one, other):
                assert evaluator.seen() is (evaluator if evaluator.inside else training).expected


def test_a_type_that_is_set_while_another_thread_enters_and_leaves_holds_until_it_is_unset():
    with Follower() as other:
        with set_interaction_type(RANDOM):
            other.go_apart()
            assert other.seen() is None
            assert interaction_type() is RANDOM
        other.set(MEAN)
        assert interaction_type() is None
        with set_interaction_type(MODE):
            other.leave()
            other.leave()
            assert interaction_type() is other.seen() is MODE
    assert interaction_type() is None


def test_after_an_exception_the_thread_has_the_process_s_type_again():
    def fail():
        with apart(1), set_interaction_type(MEAN):
            raise KeyError

    with set_interaction_type(RANDOM):
        with pytest.raises(KeyError):
            fail()
        assert interaction_type() is RANDOM


def test_compiled_code_goes_by_the_type_of_the_thread_that_runs_it():
    def made_by():
        kind = interaction_type()
        return torch.zeros(1) + (1 if kind is MEAN else 2 if kind is RANDOM else 3)

    def answers():
        made = []
        for kind in (None, MEAN, RANDOM, MEAN):
            with set_interaction_type(kind):
                made.append(compiled().item())
        return made

    def answers_apart():
        with apart(1):
            return answers()

    with ThreadPoolExecutor(1) as other:
        for first, second in ((answers, answers_apart), (answers_apart, answers)):
            compiled = torch.compile(made_by, backend="eager", fullgraph=True)
            for _ in range(2):
                with set_interaction_type(RANDOM):
                    assert other.submit(first).result() == answers() == other.submit(second).result() == [3, 1, 2, 1]


def test_torchrl_s_exploration_type_is_the_same():
    utils = pytest.importorskip("torchrl.envs.utils")
    with utils.set_exploration_type(RANDOM), ThreadPoolExecutor(1) as other:

        def seen():
            with apart(1):
                return utils.exploration_type()

        assert other.submit(seen).result() is None
        assert utils.exploration_type() is RANDOM
