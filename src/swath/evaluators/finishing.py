"""From what was performed to the result that is read: numbers, films, what the user adds."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swath.evaluate.company import Performed
from swath.evaluate.numbers import result_of
from swath.evaluate.record import Films
from swath.evaluate.request import EvalRequest
from swath.evaluate.result import EvalResult
from swath.evaluators.asked import Extras
from swath.evaluators.metrics import Metrics
from swath.report.video import VideoWriter
from swath.rollout.spaces import Array

_log = logging.getLogger("swath")

_FPS = 30.0


class Finisher:
    """Makes results.

    Args:
        extras: what they have beside the numbers.
        metrics: what users measure.

    Attributes:
        write_errors: how many films, and recordings of transforms, could not be written.
    """

    def __init__(self, extras: Extras, metrics: Metrics) -> None:
        self._extras, self._metrics = extras, metrics
        self.write_errors = 0

    def __call__(self, performed: Performed, request: EvalRequest) -> EvalResult:
        """The result of an evaluation.

        Raises:
            Exception: what measuring raised.
        """
        for failure in performed.unwritten:
            self.write_errors += 1
            _log.error(
                "what a recorder has seen in the evaluation of step %d was not written: %s", request.step, failure
            )
        measured = self._metrics(performed.footage)
        more, films = self._films(performed, request)
        more.update(measured)
        if self._extras.per_episode:
            episodes = performed.rounds.episodes()
            more["episode_rewards"] = torch.from_numpy(episodes.returns.copy())
            more["episode_lengths"] = torch.from_numpy(episodes.lengths.copy())
        facts = replace(performed.facts, films=films, more=more)
        return result_of(performed.rounds, facts, request, self._extras.prefix)

    def _films(self, performed: Performed, request: EvalRequest) -> tuple[dict[str, Any], Films]:
        """Films as an entry of the result, or as files."""
        all_takes = {episode: take for footage in performed.footage for episode, take in footage.films.items()}
        takes = dict(sorted(all_takes.items()))
        lengths = tuple(len(take) for take in takes.values())
        truncated = any(footage.film_truncated for footage in performed.footage)
        filming = self._extras.filming
        if filming.folder is None or not takes:
            film = {"video": torch.from_numpy(np.concatenate([*takes.values()]))} if takes else {}
            return film, Films((), lengths, truncated)
        rates = [footage.fps for footage in performed.footage if footage.fps is not None]
        fps = filming.fps or next(iter(rates), _FPS)
        stem = f"{self._extras.prefix}-step{request.step}".replace("/", "-")
        files = [(filming.folder / f"{stem}-episode{episode}.mp4", take) for episode, take in takes.items()]
        written = tuple(str(path) for path, take in files if self._written(path, take, fps))
        return {}, Films(written, lengths, truncated)

    def _written(self, path: Path, take: Array, fps: float) -> bool:
        """Write a film; whether that went well."""
        try:
            with VideoWriter(path, fps) as writer:
                for frame in take:
                    writer.write(frame)
        except Exception:  # noqa: BLE001  it is logged and counted
            self.write_errors += 1
            _log.exception("the film %s could not be written; the result stands", path)
            return False
        return True
