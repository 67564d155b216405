"""From what was performed to the result that is read: numbers, films, what the user adds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from swath.evaluate.company import Performed
from swath.evaluate.numbers import result_of
from swath.evaluate.record import Films
from swath.evaluate.request import EvalRequest
from swath.evaluate.result import EvalResult
from swath.evaluators.asked import Extras


class Finisher:
    """Makes results.

    Args:
        extras: what they have beside the numbers.
    """

    def __init__(self, extras: Extras) -> None:
        self._extras = extras

    def __call__(self, performed: Performed, request: EvalRequest) -> EvalResult:
        """The result of an evaluation."""
        more, films = self._films(performed)
        if self._extras.per_episode:
            episodes = performed.rounds.episodes()
            more["episode_rewards"] = torch.from_numpy(episodes.returns.copy())
            more["episode_lengths"] = torch.from_numpy(episodes.lengths.copy())
        facts = replace(performed.facts, films=films, more=more)
        return result_of(performed.rounds, facts, request, self._extras.prefix)

    def _films(self, performed: Performed) -> tuple[dict[str, Any], Films]:
        takes = {episode: take for footage in performed.footage for episode, take in footage.films.items()}
        truncated = any(footage.film_truncated for footage in performed.footage)
        if not takes:
            return {}, Films(video_truncated=truncated)
        ordered = [takes[episode] for episode in sorted(takes)]
        film = torch.from_numpy(np.concatenate(ordered))
        return {"video": film}, Films((), tuple(len(take) for take in ordered), truncated)
