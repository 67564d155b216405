"""From what was performed to the result that is read: numbers, films, what the user measures; then who is shown it.

performed ──▶ finish: films, metrics_fn ──▶ EvalResult ──▶ show: keep_best, on_result ──▶ readable
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.errors import noted
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import EpisodeRow, EvalResult, Stopped, episodes_of, summarise
from swath.evaluation.worker import EvalRequest, Report, joined
from swath.keys import drop_private
from swath.report.atomic import replacing
from swath.report.checkpoint import save_tensors
from swath.report.video import VideoWriter
from swath.weights.snapshot import POLICY

_log = logging.getLogger("swath")

LONG_S = 30.0
_FPS = 30.0
_SUFFIX = ".safetensors"
_NEWEST = ("step", "reward", "reward_ci_low", "reward_ci_high", "num_episodes")  # what `stats()` has of a result


@dataclass
class PlayedRounds:
    """What came of an evaluation.

    Attributes:
        rows: the episodes that were played, by number.
        stopped: why no more were played.
        seconds: from the first reset to the last end, of the worker that took longest; of several rounds the sum.
        retries: how often a worker was lost and its share played again.
        reports: of each worker and round.
        unwritten: what recorders in the envs could not write, in words.
    """

    rows: dict[int, EpisodeRow] = field(default_factory=dict)
    stopped: Stopped = "fixed"
    seconds: float = 0.0
    retries: int = 0
    reports: list[Report] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)


class Keeper:
    """Keeps the weights of the best evaluation.

    Args:
        path: a `.safetensors` file, beside which the result is written; or a folder, which gets `best.safetensors` and
            `best.json`.
        prefix: of the names in results.

    Attributes:
        bar: the mean return to beat; minus infinity if there is none. A JSON found on disk sets it.

    Raises:
        ValueError: a path with another suffix, or files there that are something else.
        KeyError: the result of another prefix is there.
    """

    def __init__(self, path: str | Path, prefix: str) -> None:
        given = Path(path)
        if given.suffix not in ("", _SUFFIX):
            raise ValueError(f"keep_best={str(path)!r} must end in {_SUFFIX}, or be a folder without a suffix")
        self._weights = given if given.suffix else given / f"best{_SUFFIX}"
        self._result = self._weights.with_suffix(".json")
        self._key, self.bar = f"{prefix}/reward", -math.inf
        if self._result.is_file():
            self.bar = EvalResult.from_json(self._result.read_text())[self._key]

    def keep(self, result: EvalResult, weights: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        """Write both files, each whole or not at all, if this is better than what is kept. A tie is not, NaN never is.

        Args:
            result: the newest.
            weights: gets the state by model id; the policy's entries keep their names, those of others are
                `<id>::<name>`. Extra state that is a dict is one entry for each of its own, as `name.key`.

        Raises:
            OSError: they could not be written; the old ones are whole.
            AttributeError: extra state of a model that is no tensor.
        """
        if not result[self._key] > self.bar:
            return
        named = dict[str, Any]()
        for model_id, state in weights().items():
            for name, value in state.items():
                full = name if model_id == POLICY else f"{model_id}::{name}"
                is_dict = isinstance(value, Mapping)
                named |= {f"{full}.{key}": part for key, part in value.items()} if is_dict else {full: value}
        save_tensors(self._weights, {name: value.detach().cpu().clone().contiguous() for name, value in named.items()})
        with replacing(self._result) as draft:
            draft.write_text(result.to_json())
        self.bar = float(result[self._key])


class Reporter:
    """Makes results and shows them.

    Args:
        options: what they have beside the numbers, and who is shown them.

    Attributes:
        keeper: of the best weights, if they are to be kept.
        newest: of the result that was shown last; empty before the first.
        counts: of films, recordings of transforms and best weights that could not be written (`write_errors`), and of
            calls of `on_result` that raised (`callback_errors`).
        last_error: what it raised last.

    Raises:
        ValueError, KeyError: see `Keeper`.
    """

    def __init__(self, options: EvaluatorOptions) -> None:
        path = options.keep_best
        self.keeper = None if path is None else Keeper(path, options.log_prefix)
        self._options, self._warned = options, False
        self.newest: dict[str, float] = {}
        self.counts = {"callback_errors": 0, "write_errors": 0}
        self.last_error: BaseException | None = None

    def finish(self, request: EvalRequest, performed: PlayedRounds) -> EvalResult:
        """The result of an evaluation: of what was asked for, and what came of it.

        Raises:
            TypeError: `metrics_fn` gave no mapping of names to numbers.
            ValueError: it gave a name that results have already.
            Exception: what it raised, with a note.
        """
        episodes, seconds = episodes_of(performed.rows), performed.seconds
        for failure in performed.unwritten:
            self.counts["write_errors"] += 1
            _log.error("a recorder could not write the evaluation of step %d: %s", request.step, failure)
        numbers: dict[str, Any] = summarise(episodes["returns"], episodes["lengths"], request.seed)
        numbers |= {"duration_s": seconds, "fps": numbers["frames"] / seconds}
        version = performed.reports[0].version if request.per_slot else request.policy_version
        numbers |= {"step": request.step, "policy_version": version}
        numbers |= self._measured(performed.reports, {*numbers, "video", "episode_rewards", "episode_lengths"})
        if self._options.per_episode:
            numbers["episode_rewards"] = torch.from_numpy(episodes["returns"].copy())
            numbers["episode_lengths"] = torch.from_numpy(episodes["lengths"].copy())
        video, about = self._films(request.step, performed.reports)
        about |= {"step": request.step, "seeding": performed.reports[0].seeding, "retries": performed.retries}
        named = {f"{self._options.log_prefix}/{name}": value for name, value in {**numbers, **video}.items()}
        return EvalResult(named, episodes, stopped=performed.stopped, **about)

    def show(self, result: EvalResult, weights: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        """Keep the best weights, then call `on_result`; what goes wrong there changes nothing else.

        Args:
            result: the newest.
            weights: gets those that it was made with, by model id.
        """
        options = self._options
        self.newest = {name: result[name] for name in (f"{options.log_prefix}/{name}" for name in _NEWEST)}
        if self.keeper is not None:
            try:
                self.keeper.keep(result, weights)
            except Exception:  # noqa: BLE001  it is logged and counted
                self.counts["write_errors"] += 1
                _log.exception("the best weights, of step %d, could not be written; the result stands", result.step)
        if options.on_result is None:
            return
        began = monotonic()
        try:
            options.on_result(result.to_tensordict())
        except BaseException as error:  # noqa: BLE001  it is logged, counted and kept; no exit ends our thread
            self.counts["callback_errors"] += 1
            self.last_error = error
            _log.exception("on_result raised for the evaluation of step %d; the result stands", result.step)
        seconds = monotonic() - began
        if seconds > LONG_S and not self._warned:
            self._warned = True
            text = f"on_result took {seconds:.0f} s; meanwhile no evaluation begins and no result can be read"
            warnings.warn(text, UserWarning, stacklevel=2)

    def _measured(self, reports: Sequence[Report], taken: Collection[str]) -> dict[str, Any]:
        """What `metrics_fn` gives, by names of its own."""
        settings, metrics_fn = self._options.settings, self._options.metrics_fn
        if metrics_fn is None:
            return {}
        batch: Any = joined((batch for report in reports for batch in report.steps), settings.traj_format)
        batch = batch.to(settings.storing_device)
        if settings.postproc is not None:
            with noted("postproc"):
                batch = settings.postproc(batch)
        if isinstance(batch, TensorDictBase):
            drop_private(batch)
        with noted("metrics_fn"):
            measured = dict(metrics_fn(batch))
        for name, value in measured.items():
            if name in taken:
                raise ValueError(f"metrics_fn gave {name!r}, which results have already; give it another name")
            if not (isinstance(name, str) and isinstance(value, float | int | torch.Tensor)):
                raise TypeError(f"metrics_fn gave {name}={value!r}; names are strings, values numbers or tensors")
        return measured

    def _films(self, step: int, reports: Sequence[Report]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Films as an entry of the result, or as files; and what the result says of them."""
        options = self._options
        films = [report.film for report in reports]
        takes = {episode: film.takes[episode] for film in films for episode in film.takes}
        takes = {episode: takes[episode] for episode in sorted(takes)}
        about: dict[str, Any] = {
            "video_lengths": tuple(map(len, takes.values())),
            "video_truncated": any(film.truncated for film in films),
        }
        if options.video_dir is None or not takes:
            frames = [*chain.from_iterable(takes.values())]
            return {"video": torch.from_numpy(np.stack(frames))} if frames else {}, about
        fps = options.video_fps or next((film.fps for film in films if film.fps), _FPS)
        stem = f"{options.log_prefix}-step{step}".replace("/", "-")
        files = {Path(options.video_dir) / f"{stem}-episode{episode}.mp4": take for episode, take in takes.items()}
        written = []
        for path, take in files.items():
            try:
                with VideoWriter(path, fps) as writer:
                    for frame in take:
                        writer.write(frame)
                written.append(str(path))
            except Exception:  # noqa: BLE001  it is logged and counted
                self.counts["write_errors"] += 1
                _log.exception("the film %s could not be written; the result stands", path)
        return {}, {**about, "video_paths": tuple(written)}
