"""Functions that seed and save generators: on a thread apart they mean that thread's."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.random import fork_rng, get_rng_state, initial_seed, manual_seed, seed, set_rng_state

from swath.rollout.apart import apart
from swath.rollout.apart.seeding import _OfGpus
from swath.rollout.apart.streams import streams_of_this_thread


@pytest.fixture(autouse=True)
def _the_process_s_generator_is_left_alone():
    before = torch.default_generator.get_state()
    yield
    assert torch.equal(torch.default_generator.get_state(), before)


def from_seed(number):
    return torch.rand(3, generator=torch.Generator().manual_seed(number))


def test_the_seed_is_that_of_the_thread():
    with apart(5):
        assert initial_seed() == torch.initial_seed() == 5
        assert torch.equal(torch.rand(3), from_seed(5))
        torch.manual_seed(6)
        assert torch.equal(torch.rand(3), from_seed(6))
        manual_seed(7)
        assert initial_seed() == 7


def test_a_seed_from_the_system_is_one_of_the_thread():
    before = initial_seed()
    with apart(5):
        assert seed() == initial_seed() != 5
    assert initial_seed() == before


def test_states_are_taken_and_put_back_on_the_thread():
    with apart(5):
        state = get_rng_state()
        first = torch.rand(3)
        set_rng_state(state)
        assert torch.equal(torch.rand(3), first)
        after = get_rng_state()
        with fork_rng():
            manual_seed(1)
            torch.rand(3)
        assert torch.equal(get_rng_state(), after)


def test_the_modules_hand_out_generators_that_ops_take():
    with apart(5):
        mine = torch.random.default_generator
        assert isinstance(mine, torch.Generator)
        assert mine is not torch.default_generator
        assert torch.equal(torch.rand(3, generator=mine), from_seed(5))
        with ThreadPoolExecutor(1) as other:
            assert other.submit(lambda: torch.random.default_generator).result() is torch.default_generator
    assert torch.random.default_generator is torch.default_generator


def test_a_seed_for_gpus_that_nobody_has_used_yet_is_not_kept_for_others():
    if torch.cuda.is_initialized():
        pytest.skip("a GPU is in use already")
    with apart(5):
        before = len(torch.cuda._queued_calls), torch.cuda._lazy_seed_tracker.get_calls()
        torch.cuda.manual_seed(1)
        torch.cuda.manual_seed_all(1)
        manual_seed(1)
        assert (len(torch.cuda._queued_calls), torch.cuda._lazy_seed_tracker.get_calls()) == before


def test_generators_of_gpus_are_looked_up_by_thread():
    shared = (torch.Generator(), torch.Generator())
    by_gpu = _OfGpus(shared)
    assert [*by_gpu] == [by_gpu[0], by_gpu[-1]] == [*shared] == [*by_gpu[:]]
    with apart(5):
        assert torch.equal(torch.rand(3, generator=by_gpu[0]), from_seed(5))
        assert not any(mine in shared for mine in by_gpu)


@pytest.fixture
def two_gpus(monkeypatch):
    """Torch believes that two have been initialised; what their generators really are of is the CPU."""
    shared = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    monkeypatch.setattr(torch.cuda, "default_generators", shared)
    monkeypatch.setattr(torch.cuda.random, "device_count", lambda: len(shared))
    return shared


def test_seeds_for_gpus_go_to_the_generators_of_the_thread(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with apart(5):
        torch.cuda.manual_seed_all(6)
        assert torch.initial_seed() == 6
        assert [each.initial_seed() for each in two_gpus] == [1, 2]
    torch.cuda.manual_seed_all(7)
    assert [each.initial_seed() for each in two_gpus] == [7, 7]
    assert isinstance(torch.cuda.default_generators, _OfGpus)


def test_seeds_for_gpus_wait_on_the_thread_until_there_are_some(two_gpus, monkeypatch):
    with apart(5):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
        torch.cuda.manual_seed_all(6)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        assert torch.initial_seed() == 5
        streams_of_this_thread().gpus_are_there()
        assert torch.initial_seed() == 6
    assert [each.initial_seed() for each in two_gpus] == [1, 2]
