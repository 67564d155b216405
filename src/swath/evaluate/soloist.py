"""What lives in the actor of a `RayEvalWorker`: one env, one policy, one rollout at a time, the newest that was asked.

announce(token) ─ in a thread of its own ─▶ newest ─┐
rollout(ask) ─▶ weights ─▶ Solo, step by step ◀─────┴ is mine still the newest? else `Superseded`
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from swath.errors import Closed, Superseded
from swath.evaluate.reading import Reading
from swath.evaluate.request import EvalLimits, EvalRequest
from swath.evaluate.rollout_request import Ask, Manner, Recipe, Shared, Token
from swath.evaluate.setting import Setting, SettingRequest
from swath.evaluate.solo import Solo
from swath.evaluate.stopping import StopRule
from swath.weights.manifest import Manifest
from swath.weights.snapshot import apply, take
from swath.workers.packing import Parcel


class Soloist:
    """Plays rollouts, the newest first. One thread plays; another may announce meanwhile.

    Args:
        recipe: what it is made of.

    Raises:
        Exception: what making env or policy raised.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        env_maker, policy_maker = cloudpickle.loads(recipe.makers)
        self._setting = Setting(SettingRequest(env_maker, factory=policy_maker, seed=recipe.seed))
        self._lock = threading.Lock()
        self._heard: dict[str, int] = {}
        self._newest: Token | None = None
        self._version = 0
        self._failed = False

    def recipe(self) -> Recipe:
        """What it is made of."""
        return self._recipe

    def announce(self, token: Token | None) -> None:
        """This rollout is asked for now: whatever is being played stops at its next step. `None`: no other is."""
        with self._lock:
            if token is None:
                self._newest = None
            elif token.number > self._heard.get(token.asker, 0):
                self._heard[token.asker] = token.number
                self._newest = token

    def rollout(self, ask: Ask) -> dict[str, Any] | Parcel:
        """Play it, unless another is the newest.

        Returns:
            Its numbers by name; where the env renders, the frames are the body of a parcel.

        Raises:
            Superseded: another was asked for.
            Closed: it is shut down.
            TypeError, KeyError, ValueError: weights that do not fit.
            Exception: what env or policy raised; the next rollout is played in an env that is made anew.
        """
        self.announce(ask.token)
        if ask.weights is not None:
            self._take(ask.weights, ask.version)
        with self._telling():
            if self._failed:
                self._setting.renew()
                self._failed = False
            return self._play(ask)

    def close(self) -> None:
        """Close the env."""
        self._setting.close()

    def _play(self, ask: Ask) -> dict[str, Any] | Parcel:
        self._require_newest(ask.token)
        solo = Solo(self._setting, self._request(ask.manner), self._recipe.film_bytes)
        numbers = solo.play(lambda: self._require_newest(ask.token), until_any_done=ask.manner.until_any_done)
        numbers["policy_version"] = self._version
        numbers["frames_truncated"] = solo.film is not None and solo.film.truncated
        frames = solo.frames
        return {**numbers, "frames": None} if frames is None else Parcel(numbers, frames)

    def _request(self, manner: Manner) -> EvalRequest:
        recipe = self._recipe
        return EvalRequest(
            StopRule(self._setting.host.spec.num_envs),
            EvalLimits(manner.max_steps),
            recipe.seed,
            manner.exploration,
            Reading.of(manner.reward_keys, recipe.done_keys),
        )

    def _require_newest(self, token: Token) -> None:
        newest = self._newest
        if newest is None:
            raise Closed("this RayEvalWorker was shut down by another handle; make another one")
        if newest != token:
            raise Superseded("the rollout was given up for a later submit of another handle; submit it again")

    def _take(self, weights: Shared, version: int) -> None:
        policy = self._setting.policy
        fitting = take(weights.open().weights(), Manifest.of(policy))
        if fitting is None:
            raise TypeError(f"weights were submitted, but the policy, {type(policy).__name__}, has none; submit None")
        apply(fitting, policy)
        self._version = max(self._version + 1, version)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """After an exception of the user's the env is not used again as it is."""
        try:
            yield
        except (Closed, Superseded):
            raise
        except Exception as error:
            self._failed = True
            error.add_note("in the actor of a RayEvalWorker")
            raise
