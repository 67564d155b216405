"""Seeds as a pure function of (root seed, role, env number, life or episode number).

Within one root no two seeds are alike: role, env and number are packed into 31 bits and sent through a permutation
keyed by the root, so that different inputs cannot meet and neighbouring ones have nothing in common.
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
    """The seed, in 1 … 2³¹−1, of one generator.

    Args:
        root: the user's seed, any integer.
        role: what is seeded.
        env: env (or worker) number, counted over all workers, below 2¹⁶; 0 for the roles of evaluation.
        number: the life, below 2¹²; for the roles of evaluation the episode, below 2²⁸.

    Raises:
        ValueError: a number outside these ranges; seeds would stop being unique.
    """
    return _permute(_pack(role, env, number), root)


def derive_named(root: int, name: str) -> int:
    """The seed, in 1 … 2³¹−1, of what is known by a name and must be equal wherever it is made; a hash."""
    digest = hashlib.blake2b(f"{root}/{name}".encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % LARGEST


def fresh_root() -> int:
    """A root seed from the system's entropy."""
    return secrets.randbelow(LARGEST) + 1


def _pack(role: Role, env: int, number: int) -> int:
    episodic = role in _PER_EPISODE
    most_envs, most = (1, 2**_INDEX_BITS) if episodic else (2 ** (_INDEX_BITS - _LIFE_BITS), 2**_LIFE_BITS)
    if not (0 <= env < most_envs and 0 <= number < most):
        raise ValueError(f"no seed for role={role!r}, env={env}, number={number}: env < {most_envs}, number < {most}")
    index = number if episodic else (env << _LIFE_BITS) + number
    return 1 + (_ROLES.index(role) << _INDEX_BITS) + index


def _permute(value: int, root: int) -> int:
    """Encipher until the result is a legal seed, which keeps the map one to one."""
    while True:
        value = _encipher(value, root)
        if 1 <= value <= LARGEST:
            return value


def _encipher(value: int, root: int) -> int:
    """A Feistel network over 32 bits: a permutation whatever the round function."""
    left, right = value >> _HALF, value & ((1 << _HALF) - 1)
    for turn in range(_ROUNDS):
        left, right = right, left ^ _mix(right, turn, root)
    return (left << _HALF) | right


def _mix(half: int, turn: int, root: int) -> int:
    digest = hashlib.blake2b(f"{root}/{turn}/{half}".encode(), digest_size=_HALF // 8).digest()
    return int.from_bytes(digest, "big")
