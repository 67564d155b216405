"""Draws of torch on a thread apart: the numbers that its seed gives anywhere, and no trace outside."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from swath.rollout.apart import apart, is_apart
from swath.rollout.apart.draws import attended, dropped

ONES, HALVES = torch.ones(2, 3, 4), torch.full((2, 3), 0.5)
LSTM = nn.LSTM(2, 2, num_layers=2, dropout=0.5)

DRAWS = {
    "rand": lambda: torch.rand(3),
    "randn, small": lambda: torch.randn(3),
    "randn, large": lambda: torch.randn(40),
    "randint": lambda: torch.randint(0, 1000, (3,)),
    "randperm": lambda: torch.randperm(9),
    "rand, given out": lambda: torch.rand(3, out=torch.empty(3)),
    "rand_like": lambda: torch.rand_like(ONES),
    "randint_like": lambda: torch.randint_like(ONES, 3, 1000),
    "normal": lambda: torch.normal(ONES, 2.0),
    "bernoulli": lambda: torch.bernoulli(HALVES),
    "multinomial": lambda: torch.multinomial(HALVES, 2),
    "poisson": lambda: torch.poisson(ONES),
    "binomial": lambda: torch.binomial(9 * ONES, 0.5 * ONES),
    "normal_": lambda: torch.empty(3).normal_(),
    "uniform_": lambda: torch.empty(3).uniform_(),
    "random_": lambda: torch.empty(3).random_(),
    "exponential_": lambda: torch.empty(3).exponential_(),
    "cauchy_": lambda: torch.empty(3).cauchy_(),
    "log_normal_": lambda: torch.empty(3).log_normal_(),
    "geometric_": lambda: torch.empty(3).geometric_(0.2),
    "Normal": lambda: torch.distributions.Normal(ONES, 2.0).sample(),
    "Categorical": lambda: torch.distributions.Categorical(HALVES).sample((4,)),
    "Gamma": lambda: torch.distributions.Gamma(ONES, ONES).rsample(),
    "Beta": lambda: torch.distributions.Beta(ONES, ONES).rsample(),
    "Dirichlet": lambda: torch.distributions.Dirichlet(ONES).rsample(),
    "init": lambda: nn.init.xavier_normal_(torch.empty(3, 4)),
    "gumbel_softmax": lambda: functional.gumbel_softmax(HALVES),
    "dropout": lambda: functional.dropout(ONES),
    "dropout1d": lambda: functional.dropout1d(ONES),
    "alpha_dropout": lambda: functional.alpha_dropout(ONES, training=True),
    "feature_alpha_dropout": lambda: functional.feature_alpha_dropout(ONES, training=True),
    "native_dropout": lambda: torch.native_dropout(ONES, 0.3, True)[0],
    "rrelu": lambda: functional.rrelu(-ONES, training=True),
    "attention": lambda: functional.scaled_dot_product_attention(ONES, ONES, ONES, dropout_p=0.5),
    "lstm": lambda: LSTM(torch.ones(3, 1, 2))[0],
    "vmap": lambda: torch.vmap(lambda row: row + torch.rand(4), randomness="different")(ONES[0]),
}
some_draws = st.lists(st.sampled_from(sorted(DRAWS)), max_size=6)


class PassingOn(TorchDispatchMode):
    """A mode of the user's: calls every op again, from its handler."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def from_seed(draw, seed=3):
    torch.manual_seed(seed)
    return [draw() for _ in range(2)] + [torch.rand(1)]


def alone(function):
    """What it returns on this thread apart; the process's generators are where they were."""
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    with apart():
        made = function()
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    return made


def same(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


@pytest.mark.parametrize("within", [nullcontext, torch.no_grad, torch.inference_mode, PassingOn])
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_has_the_numbers_of_its_seed_and_leaves_no_trace(name, within):
    def drawn():
        with within():
            return from_seed(DRAWS[name])

    expected = drawn()
    torch.manual_seed(99)
    assert same(alone(drawn), expected)
    assert not same(expected[:1], expected[1:2])


@settings(deadline=None)
@given(before=some_draws, within=some_draws, after=some_draws)
def test_any_draws_apart_are_as_elsewhere_and_change_nothing_of_those_around_them(before, within, after):
    def drawn(names):
        return [DRAWS[name]() for name in names]

    torch.manual_seed(1)
    around = drawn(before) + drawn(after)
    torch.manual_seed(2)
    expected = drawn(within)
    torch.manual_seed(1)
    first = drawn(before)
    with apart(2):
        assert same(drawn(within), expected)
    assert same(first + drawn(after), around)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_draws_apart_from_its_first_call_on_wherever_it_was_compiled(backend):
    policy = nn.Sequential(nn.Linear(4, 4), nn.Dropout())

    def act(observation):
        return policy(observation) + torch.rand(3, 4) + torch.bernoulli(torch.full((3, 4), 0.5))

    def drawn(function):
        with torch.no_grad():
            return from_seed(lambda: function(ONES[0]))

    expected = drawn(act)
    compiled = torch.compile(act, backend=backend)
    assert same(alone(lambda: drawn(compiled)), expected)
    assert same(drawn(compiled), expected)
    again = torch.compile(act, backend=backend)
    assert same(drawn(again), expected)
    assert same(alone(lambda: drawn(again)), expected)


def test_a_generator_that_is_given_is_drawn_from():
    def drawn():
        mine = torch.Generator().manual_seed(4)
        return [torch.rand(3, generator=mine), torch.multinomial(HALVES, 2, generator=mine)]

    assert same(alone(drawn), drawn())


def test_the_process_s_generator_means_the_thread_s_where_it_is_given():
    def drawn(generator=torch.default_generator):
        return torch.cat([torch.rand(3, generator=generator), torch.poisson(9 * ONES, generator).flatten()])

    assert same(alone(lambda: from_seed(drawn)), from_seed(drawn))


def test_without_a_seed_no_two_are_alike():
    def drawn():
        with apart():
            return torch.rand(3)

    assert not torch.equal(drawn(), drawn())


def test_within_another_one_starts_afresh_and_the_outer_one_goes_on_after_it():
    with apart(1):
        expected = [torch.rand(2), torch.rand(2)]
    with apart(1):
        first = torch.rand(2)
        with apart(1):
            assert torch.equal(torch.rand(2), expected[0])
        assert same([first, torch.rand(2)], expected)


def test_after_an_exception_the_thread_draws_from_the_process_s_generator_again():
    def fail():
        with apart(1), apart(2):
            torch.rand(1)
            raise KeyError

    torch.manual_seed(5)
    expected = [torch.rand(2), torch.rand(2)]
    torch.manual_seed(5)
    first = torch.rand(2)
    with pytest.raises(KeyError):
        fail()
    assert not is_apart()
    assert same([first, torch.rand(2)], expected)


def test_a_thread_that_draws_all_the_time_draws_what_it_would_alone():
    def train(draw=DRAWS["Categorical"]):
        torch.manual_seed(7)
        for _ in range(100):
            torch.rand(1)
        return [draw() for _ in range(1500)]

    expected, started, over, drawn = train(), threading.Barrier(2), threading.Event(), []

    def evaluate():
        started.wait()
        with apart(3):
            while True:
                drawn.append(from_seed(DRAWS["dropout"]))
                if over.is_set():
                    return

    with ThreadPoolExecutor(1) as other:
        evaluation = other.submit(evaluate)
        started.wait()
        try:
            trained = train()
        finally:
            over.set()
        evaluation.result()
    assert same(trained, expected)
    assert all(same(each, drawn[0]) for each in drawn)


def test_two_threads_apart_at_once_each_draw_their_own():
    both = threading.Barrier(2)

    def drawn(seed):
        with apart(seed):
            made = []
            for _ in range(20):
                both.wait()
                made += [torch.rand(2), functional.dropout(ONES)]
            return made

    def one_by_one(seed):
        with apart(seed):
            return [draw() for _ in range(20) for draw in (lambda: torch.rand(2), DRAWS["dropout"])]

    with ThreadPoolExecutor(2) as others:
        together = list(others.map(drawn, [1, 2]))
    assert same(together[0], one_by_one(1))
    assert same(together[1], one_by_one(2))


def test_other_threads_are_not_apart():
    with apart(1), ThreadPoolExecutor(1) as other:
        assert is_apart()
        assert not other.submit(is_apart).result()
        torch.manual_seed(3)
        other.submit(torch.manual_seed, 4).result()
        expected = torch.rand(2, generator=torch.Generator().manual_seed(4))
        assert torch.equal(other.submit(torch.rand, 2).result(), expected)


def test_gradients_and_their_mode_are_as_ever():
    weights = torch.ones(3, requires_grad=True)
    with apart(1):
        assert torch.is_grad_enabled()
        functional.dropout(weights).sum().backward()
        with torch.no_grad(), ThreadPoolExecutor(1) as other:
            assert other.submit(torch.is_grad_enabled).result()
    assert set(weights.grad.tolist()) <= {0.0, 2.0}


def test_what_stands_in_for_kernels_of_gpus_has_the_numbers_of_the_cpu():
    for p in (0.3, 1.0):
        made = from_seed(lambda p=p: torch.stack([*dropped(ONES, p)]))
        assert same(made, from_seed(lambda p=p: torch.stack([*torch.native_dropout(ONES, p, True)])))
    options = {"dropout_p": 0.5, "is_causal": True, "scale": 0.1}
    made = from_seed(lambda: attended((ONES, ONES, ONES, None, 0.5, True), {"scale": 0.1}))
    assert same(made, from_seed(lambda: functional.scaled_dot_product_attention(ONES, ONES, ONES, **options)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpus_have_generators_of_the_thread_too():
    there = ONES.cuda()
    draws = [
        lambda: torch.rand(3, device="cuda"),
        lambda: functional.dropout(there),
        lambda: functional.scaled_dot_product_attention(there, there, there, dropout_p=0.5),
        lambda: torch.distributions.Normal(there, 1.0).sample(),
    ]
    before = torch.cuda.get_rng_state()
    with apart(1):
        first, second = ([draw() for draw in draws if torch.manual_seed(3)] for _ in range(2))
        assert same(first, second)
        torch.cuda.manual_seed(3)
        assert torch.equal(torch.rand(3, device="cuda"), first[0])
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3, device="cuda"), first[0])
