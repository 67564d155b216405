"""Seeds as a pure function of (root seed, role, env number, life or episode number).

Seeds of one root are all different: role, env and number are packed into 31 bits, which a permutation with the root as
key maps to the seed. Seeds of neighbouring inputs have nothing in common.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal, get_args

Role = Literal["env", "policy", "global", "next", "evaluation", "noise", "bootstrap"]

LARGEST = 2**31 - 1
_ROLES: tuple[Role, ...] = get_args(Role)
_PER_EPISODE = frozenset({"evaluation", "noise"})
_INDEX_BITS, _LIFE_BITS, _HALF, _ROUNDS = 28, 12, 16, 6


def derive(root: int, role: Role, env: int = 0, number: int = 0) -> int:
    """Return the seed, in 1 … 2³¹−1, of one generator.

    Args:
        root: the user's seed, any integer.
        role: role of the generator.
        env: env (or worker) number, counted over all workers, below 2¹⁶; 0 for the roles of evaluation.
        number: the life, below 2¹²; for the roles of evaluation the episode, below 2²⁸.

    Raises:
        ValueError: a number outside of its range, where seeds would not be unique.
    """
    return _permute(_pack(role, env, number), root)


def derive_named(root: int, name: str) -> int:
    """Return the seed, in 1 … 2³¹−1, of a named generator: a hash, equal in every process."""
    digest = hashlib.blake2b(f"{root}/{name}".encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % LARGEST


def fresh_root() -> int:
    """Return a root seed from the system's entropy."""
    return secrets.randbelow(LARGEST) + 1


def _pack(role: Role, env: int, number: int) -> int:
    episodic = role in _PER_EPISODE
    n_envs, n_numbers = (1, 2**_INDEX_BITS) if episodic else (2 ** (_INDEX_BITS - _LIFE_BITS), 2**_LIFE_BITS)
    if not (0 <= env < n_envs and 0 <= number < n_numbers):
        raise ValueError(f"no seed for role={role!r}, env={env}, number={number}: env < {n_envs}, number < {n_numbers}")
    index = number if episodic else (env << _LIFE_BITS) + number
    return 1 + (_ROLES.index(role) << _INDEX_BITS) + index


def _permute(value: int, root: int) -> int:
    """Encipher until the result is a legal seed, so that the map stays one to one."""
    while True:
        value = _encipher(value, root)
        if 1 <= value <= LARGEST:
            return value


def _encipher(value: int, root: int) -> int:
    """Apply a Feistel network over 32 bits, which is a permutation for any round function."""
    high, low = value >> _HALF, value & ((1 << _HALF) - 1)
    for number in range(_ROUNDS):
        high, low = low, high ^ _mix(low, number, root)
    return (high << _HALF) | low


def _mix(half: int, number: int, root: int) -> int:
    digest = hashlib.blake2b(f"{root}/{number}/{half}".encode(), digest_size=_HALF // 8).digest()
    return int.from_bytes(digest, "big")
