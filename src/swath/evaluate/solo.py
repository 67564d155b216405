"""One rollout: every sub-env plays one episode, or all stop with the first that ends.

Setting ──▶ Runner ──▶ Booked per sub-env ─┐
               └──▶ Film of sub-env 0 ─────┴──▶ numbers, frames
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import torch

from swath.evaluate.acting import EvalPolicy
from swath.evaluate.arena import only_together
from swath.evaluate.film import Film
from swath.evaluate.quota import Quota
from swath.evaluate.request import EvalRequest
from swath.evaluate.runner import Manner, Runner
from swath.evaluate.setting import Setting
from swath.evaluate.statistics import summarise
from swath.rollout.hosts.base import first_of
from swath.rollout.random_state import PrivateStreams
from swath.rollout.spaces import Array
from swath.seeds import derive, fresh_root


class Solo:
    """Plays one rollout in a setting that outlives it.

    Args:
        setting: what it plays in, and with.
        request: under which conditions.
        film_bytes: frames held at most.

    Attributes:
        film: frames of sub-env 0; `None` where it renders none.
    """

    def __init__(self, setting: Setting, request: EvalRequest, film_bytes: int) -> None:
        host = setting.host
        scoring = request.reading.applied_to(host)
        self._request, self._quota = request, Quota(range(host.spec.num_envs), host.spec.num_envs)
        self.film = Film(1, film_bytes) if _renders(host.env) else None
        acting = EvalPolicy(setting.acts, host.spec, request.exploration_type, request.seed, setting.device)
        watchers = [] if self.film is None else [self.film]
        manner = Manner(scoring, together=only_together(host, request), watchers=watchers)
        self._runner = Runner(host, acting.bind, request, manner)
        root = fresh_root() if request.seed is None else request.seed
        self._streams = PrivateStreams(derive(root, "global"), setting.device)

    def play(self, go_on: Callable[[], None], *, until_any_done: bool) -> dict[str, Any]:
        """The numbers of the rollout.

        Args:
            go_on: called after each step; what it raises ends the rollout.
            until_any_done: cut all episodes at the first step at which one is over.

        Raises:
            Exception: what env or policy raised, with a note that says where.
        """
        began = monotonic()
        with self._streams.in_force():
            for _ in self._runner.play(self._quota):
                go_on()
                if until_any_done and len(self._runner.ledger):
                    self._runner.cut()
                    break
        return self._numbers(monotonic() - began)

    @property
    def frames(self) -> Array | None:
        """uint8 `[T, H, W, 3]`, if there are any."""
        return None if self.film is None else self.film.takes().get(0)

    def _numbers(self, seconds: float) -> dict[str, Any]:
        episodes = self._runner.ledger.episodes()
        numbers: dict[str, Any] = {**summarise(episodes.returns, episodes.lengths, self._request.seed)}
        steps = numbers["num_frames"] = numbers.pop("frames")
        return {
            **numbers,
            "duration_s": seconds,
            "fps": steps / seconds,
            "episode_rewards": torch.from_numpy(episodes.returns),
            "episode_lengths": torch.from_numpy(episodes.lengths),
            "truncated": torch.from_numpy(episodes.truncated),
        }


def _renders(env: Any) -> bool:
    mode = getattr(first_of(env), "render_mode", None)
    modes = mode() if callable(mode) else mode  # TorchRL's batches ask each of their envs
    return "rgb_array" in modes if isinstance(modes, list | tuple) else modes == "rgb_array"
