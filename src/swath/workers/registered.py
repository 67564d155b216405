"""Envs that the driver has registered with gymnasium are known to its workers elsewhere, too.

    driver: registry ─▶ Registered(build, …) ─▶ pickle ─▶ worker: build unpickled ─▶ registry updated ─▶ build()

What a worker registers by itself, with the modules that it imports, comes before.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from swath.pickles import pickled


@dataclass(frozen=True)
class Registered:
    """Build a worker where the driver's ids of envs are known.

    Attributes:
        build: makes its object.
        named: the specs whose entry points are text, as bytes.
        others: the specs with other entry points by id, as bytes.
        missing: by id, why a spec cannot be pickled.
    """

    build: Callable[[], Any]
    named: bytes
    others: dict[str, bytes]
    missing: dict[str, str]

    @classmethod
    def here(cls, build: Callable[[], Any]) -> Registered:
        """Add the specs that are registered in this process now."""
        named, others, missing = dict[str, EnvSpec](), dict[str, bytes](), dict[str, str]()
        for env_id, spec in gym.registry.items():
            if isinstance(spec.entry_point, str) and not (spec.kwargs or spec.additional_wrappers):
                named[env_id] = spec
            else:
                try:
                    others[env_id] = pickled(spec)
                except TypeError as error:
                    missing[env_id] = str(error)
        return cls(build, pickle.dumps(named), others, missing)

    def __call__(self) -> Any:
        """Register what came along, then build."""
        gym.registry.update(pickle.loads(self.named))  # noqa: S301  our own driver wrote it
        missing = dict(self.missing)
        for env_id, data in self.others.items():
            try:
                gym.registry[env_id] = pickle.loads(data)  # noqa: S301  our own driver wrote it
            except Exception as error:  # noqa: BLE001  modules that are missing here, perhaps, and perhaps not needed
                missing[env_id] = f"{error}"
        for env_id, why in missing.items():
            gym.registry.setdefault(env_id, EnvSpec(env_id, Missing(env_id, why)))
        return self.build()


@dataclass(frozen=True)
class Missing:
    """Raise, in the place of an entry point that cannot travel.

    Attributes:
        env_id: what is registered in the driver.
        why: the reason in words.
    """

    env_id: str
    why: str

    def __call__(self, *_: object, **_keywords: object) -> NoReturn:
        """Raise `TypeError`."""
        raise TypeError(
            f"the env {self.env_id!r} is registered in the driver, and its entry point cannot be sent to a worker: "
            f"{self.why}; register it in the worker, by init_fn, or in a function that builds the env"
        )
