"""What lives in the actor of a `RayEvalWorker`: one env, one policy, one rollout at a time, the newest that was asked.

rollout(ask) ─▶ weights ─▶ Runner, step by step ◀── is mine still the newest? else `Superseded`
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from swath.errors import Closed, Superseded
from swath.evaluation.newest import Token
from swath.evaluation.request import EvalRequest
from swath.evaluation.result import episodes_of
from swath.evaluation.setting import Setting, SettingRequest
from swath.evaluation.statistics import summarise
from swath.evaluation.worker import Performance
from swath.rollout.hosts.base import first_of
from swath.rollout.policies.calling import ExplorationType
from swath.weights.channel import Update
from swath.weights.manifest import Manifest, take
from swath.weights.snapshot import POLICY, apply
from swath.workers.packing import Parcel

PUBLIC = ("rollout",)
"""Methods by which an actor shows of what kind it is."""


@dataclass(frozen=True)
class Ask:
    """One rollout.

    Attributes:
        token: its name.
        max_steps: most steps of each sub-env; `None` for no such limit.
        exploration: how the policy picks actions.
        until_any_done: stop at the first step at which any sub-env is done.
        reward_keys: as `Reading.of` takes them.
    """

    token: Token
    max_steps: int | None = None
    exploration: ExplorationType = ExplorationType.DETERMINISTIC
    until_any_done: bool = True
    reward_keys: Any = ("next", "reward")


class EvalActor:
    """Plays rollouts, one after another.

    Args:
        makers: of env and policy, as bytes of cloudpickle.
        done_keys: as `Reading.of` takes them.
        seed: root of all seeds.
        film_bytes: frames held at most.
        superseded: gives what is done when a rollout is not the newest; with the one that is, or `None`.

    Raises:
        Exception: what making env or policy raised.
    """

    def __init__(
        self,
        makers: bytes,
        done_keys: Any = ("next", "done"),
        seed: int | None = 0,
        film_bytes: int = 2**30,
        superseded: Callable[[Token], Future[Token | None]] = lambda _: Future(),
    ) -> None:
        env_maker, policy_maker = cloudpickle.loads(makers)
        self._done_keys, self._seed, self._film_bytes = done_keys, seed, film_bytes
        self._setting = Setting(SettingRequest(env_maker, factory=policy_maker, seed=seed))
        self._superseded = superseded
        self._version = 0
        self._failed = False

    def rollout(self, ask: Ask, update: Update | None = None) -> dict[str, Any] | Parcel:
        """Take newer weights, if they come with it, and play it, unless another is the newest.

        Returns:
            Its numbers by name; where the env renders, the frames are the body of a parcel.

        Raises:
            Superseded: another was asked for.
            Closed: it is shut down.
            TypeError, KeyError, ValueError: weights that do not fit.
            Exception: what env or policy raised; the next rollout is played in an env that is made anew.
        """
        superseded = self._superseded(ask.token)
        if update is not None and update.models:
            self._take(update)
        try:
            if self._failed:
                self._setting.renew()
                self._failed = False
            return self._play(ask, superseded)
        except (Closed, Superseded):
            raise
        except Exception as error:
            self._failed = True
            error.add_note("in the actor of a RayEvalWorker")
            raise

    def close(self) -> None:
        """Close the env."""
        self._setting.close()

    def _play(self, ask: Ask, superseded: Future[Token | None]) -> dict[str, Any] | Parcel:
        _require_newest(superseded)
        host = self._setting.host
        n = host.spec.num_envs
        request = EvalRequest(
            num_trajectories=n,
            max_steps=ask.max_steps,
            seed=self._seed,
            exploration_type=ask.exploration,
            reward_keys=ask.reward_keys,
            done_keys=self._done_keys,
            film=int(_renders(host.env)),
            film_bytes=self._film_bytes,
        )
        performance = Performance(self._setting, request)
        runner = performance.runner

        def enough() -> bool:
            _require_newest(superseded)
            return ask.until_any_done and bool(runner.rows)

        performance.begin(range(n))
        performance.play(enough)
        runner.cut()
        seconds, episodes, footage = performance.seconds, episodes_of(runner.rows), performance.footage()
        numbers: dict[str, Any] = {**summarise(episodes["returns"], episodes["lengths"], self._seed)}
        steps = numbers["num_frames"] = numbers.pop("frames")
        numbers |= {
            "duration_s": seconds,
            "fps": steps / seconds,
            "policy_version": self._version,
            "episode_rewards": torch.from_numpy(episodes["returns"].copy()),
            "episode_lengths": torch.from_numpy(episodes["lengths"].copy()),
            "truncated": torch.from_numpy(episodes["truncated"].copy()),
            "frames_truncated": footage is not None and footage.film_truncated,
        }
        frames = None if footage is None else footage.films.get(0)
        return {**numbers, "frames": None} if frames is None else Parcel(numbers, frames)

    def _take(self, update: Update) -> None:
        policy = self._setting.policy
        fitting = take(update.opened()[POLICY], Manifest.of(policy))
        if fitting is None:
            raise TypeError(f"weights were submitted, but the policy {type(policy).__name__} has none; submit None")
        apply(fitting, policy)
        self._version = max(self._version + 1, update.version)  # others may have sent some


def _require_newest(superseded: Future[Token | None]) -> None:
    if not superseded.done():
        return
    if superseded.result() is None:
        raise Closed("this RayEvalWorker was shut down by another handle; make another one")
    raise Superseded("the rollout was given up for a later submit of another handle; submit it again")


def _renders(env: Any) -> bool:
    mode = getattr(first_of(env), "render_mode", None)
    modes = mode() if callable(mode) else mode  # TorchRL's batches ask each of their envs
    return "rgb_array" in modes if isinstance(modes, list | tuple) else modes == "rgb_array"
