"""`torch.manual_seed`, `seed`, `get_rng_state`, `fork_rng` and the like: on a thread that is apart they mean its own.

    torch.manual_seed ─▶ global `default_generator` of torch/random.py ─▶ stand-in ─┬─ apart ─▶ the thread's generator
                                                                                    └─ else ──▶ the process's
They all look their generators up by name in `torch.random` and `torch.cuda`, so that is where the stand-ins are; by
whatever name a user imported the functions. Whoever asks the modules for a generator gets a real one.
"""
# ruff: noqa: SLF001  torch has no public names for what its modules look up

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import torch

from swath.rollout.apart.streams import streams_of_this_thread

_CPU = torch.device("cpu")
_CUDA: Any = torch.cuda


def is_of_the_process(generator: Any) -> bool:
    """Whether it is one that all threads share; what an op is given is another object for the same generator."""
    shared: tuple[Any, ...] = torch.default_generator, *tuple.__iter__(torch.cuda.default_generators)
    return any(generator._cdata == each._cdata for each in shared)


@cache
def install() -> None:
    """Put the stand-ins in place, once."""
    torch.random.__class__ = _RandomModule
    vars(torch.random)["default_generator"] = _StandIn()
    _watch_gpus()


def _cpu_generator() -> torch.Generator:
    streams = streams_of_this_thread()
    return torch.default_generator if streams is None else streams.on(_CPU)


class _StandIn:
    """What the functions of torch/random.py find: has the methods of the right generator."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_cpu_generator(), name)


class _RandomModule(ModuleType):
    """Hands out generators, not stand-ins: ops take no other."""

    @property
    def default_generator(self) -> torch.Generator:
        return _cpu_generator()


class _OfGpus(tuple[torch.Generator, ...]):
    """The generators of the process, by GPU; on a thread that is apart one gets that thread's."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        streams = streams_of_this_thread()
        found = super().__getitem__(index)
        return found if streams is None or isinstance(found, tuple) else streams.on(found.device)

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[index] for index in range(len(self)))


def _watch_gpus() -> None:
    """CUDA makes its generators when it is first used: whoever looks them up through torch finds the stand-in there."""
    module = _CUDA.random
    when_there, start = module._lazy_call, module._lazy_init

    def call(seeding: Callable[[], None], *, seed: bool = False, seed_all: bool = False) -> None:
        streams = streams_of_this_thread()
        if streams is None or _CUDA.is_initialized():
            _cover_gpus()
            when_there(seeding, seed=seed, seed_all=seed_all)
        else:
            streams.once_there_are_gpus(lambda: call(seeding))

    def init() -> None:
        start()
        _cover_gpus()

    module._lazy_call, module._lazy_init = call, init
    _cover_gpus()


def _cover_gpus() -> None:
    held = _CUDA.default_generators
    if _CUDA.is_initialized() and not isinstance(held, _OfGpus):
        _CUDA.default_generators = _OfGpus(held)
