"""A thread apart from the others of its process: its own random draws of torch, its own interaction type.

                                    ┌─ draws.py        ops that draw  ─┐
    with apart(seed): user code ────┼─ seeding.py      torch.manual_seed, get_rng_state, … ─┴──▶ Streams of this thread
                                    └─ interaction.py  set_interaction_type, interaction_type ──▶ type of this thread

Other threads, and this one before and after, go on with what is the process's own. The three are put into torch and
tensordict once, by the first thread that asks; what they cost others is in `docs/design.md`.

Not of the thread alone: generators of numpy and of `random`; threads that the user's code starts; C++ code that draws
without an op of torch's, and TorchScript that seeds; what is called on the object `torch.default_generator` itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from swath.rollout.apart import draws, interaction, seeding
from swath.rollout.apart.streams import Streams, streams_of_this_thread, with_streams
from swath.seeds import fresh_root

__all__ = ["apart", "is_apart"]

_installing = Lock()


@contextmanager
def apart(seed: int | None = None) -> Iterator[None]:
    """Within, on this thread alone, torch draws from new generators and the interaction type starts as `None`.

    May be nested: the inner one starts afresh, the outer one goes on after it. To be left on the thread that entered.

    Args:
        seed: of the generators, until something within seeds them; `None`: drawn from the system.
    """
    with _installing:
        draws.install()
        seeding.install()
        interaction.install()
    with with_streams(Streams(fresh_root() if seed is None else seed)), draws.redirected(), interaction.own_type():
        yield


def is_apart() -> bool:
    """Whether this thread is apart."""
    return streams_of_this_thread() is not None
