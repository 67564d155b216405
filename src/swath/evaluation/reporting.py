"""Builds results from the rounds that workers played, and delivers them.

PlayedRounds ──▶ build_result: films, metrics_fn ──▶ EvalResult ──▶ deliver: keep_best, on_result ──▶ readable
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.errors import note_source, warn
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import EpisodeRow, EvalResult, Stopped, episodes_of, summarise
from swath.evaluation.worker import EvalRequest, Report, join_trajectories
from swath.keys import drop_private
from swath.report.atomic import replace_atomically
from swath.report.checkpoint import save_tensors
from swath.report.video import VideoWriter
from swath.weights.snapshot import POLICY

_log = logging.getLogger("swath")

LONG_S = 30.0
_FPS = 30.0
_SUFFIX = ".safetensors"
_NEWEST = ("step", "reward", "reward_ci_low", "reward_ci_high", "num_episodes")  # numbers of a result in `stats()`


@dataclass
class PlayedRounds:
    """The rounds of one evaluation.

    Attributes:
        rows: the complete episodes, by number.
        stopped: the reason to play no further round.
        seconds: time from the first reset to the last end, of the slowest worker; summed over rounds.
        retries: number of losses, after which the share of a worker was played again.
        reports: reports of each worker and round.
        unwritten: failures of recorders in the envs, in words.
    """

    rows: dict[int, EpisodeRow] = field(default_factory=dict)
    stopped: Stopped = "fixed"
    seconds: float = 0.0
    retries: int = 0
    reports: list[Report] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)


class BestWeights:
    """The weights of the best evaluation, on disk.

    Args:
        path: a `.safetensors` file, whose folder also gets the result; or a folder, which gets `best.safetensors` and
            `best.json`.
        prefix: prefix of the names in results.

    Attributes:
        reward: the best mean return so far; minus infinity if there is none. An existing JSON file sets it.

    Raises:
        ValueError: the path has another suffix, or the files at the path are of another kind.
        KeyError: the file at the path has the result of another prefix.
    """

    def __init__(self, path: str | Path, prefix: str) -> None:
        file = Path(path)
        if file.suffix not in ("", _SUFFIX):
            raise ValueError(f"keep_best={str(path)!r} must end in {_SUFFIX}, or be a folder without a suffix")
        self._weights = file if file.suffix else file / f"best{_SUFFIX}"
        self._result = self._weights.with_suffix(".json")
        self._key, self.reward = f"{prefix}/reward", -math.inf
        if self._result.is_file():
            self.reward = EvalResult.from_json(self._result.read_text())[self._key]

    def keep(self, result: EvalResult, weights: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        """Write both files, each whole or not at all, if the result is better than the best. Ties and NaN are not.

        Args:
            result: the newest.
            weights: returns states by model id; the policy's entries keep their names, entries of other models become
                `<id>::<name>`. Extra state that is a dict becomes an entry `name.key` for each key.

        Raises:
            OSError: a file could not be written; the old files are whole.
            AttributeError: extra state of a model is no tensor.
        """
        if not result[self._key] > self.reward:
            return
        flat = dict[str, Any]()
        for model_id, state in weights().items():
            for name, value in state.items():
                full = name if model_id == POLICY else f"{model_id}::{name}"
                is_dict = isinstance(value, Mapping)
                flat |= {f"{full}.{key}": part for key, part in value.items()} if is_dict else {full: value}
        save_tensors(self._weights, {name: value.detach().cpu().clone().contiguous() for name, value in flat.items()})
        with replace_atomically(self._result) as draft:
            draft.write_text(result.to_json())
        self.reward = float(result[self._key])


class Reporter:
    """Builds results and delivers them.

    Args:
        options: settings of the evaluator.

    Attributes:
        best: the best weights; `None` if none are kept.
        newest: numbers of the result that was delivered last; empty before the first.
        counts: of films, recordings of transforms and best weights that could not be written (`write_errors`), and of
            calls of `on_result` that raised (`callback_errors`).
        last_error: the newest exception of `on_result`.

    Raises:
        ValueError, KeyError: see `BestWeights`.
    """

    def __init__(self, options: EvaluatorOptions) -> None:
        path = options.keep_best
        self.best = None if path is None else BestWeights(path, options.log_prefix)
        self._options, self._warned = options, False
        self.newest: dict[str, float] = {}
        self.counts = {"callback_errors": 0, "write_errors": 0}
        self.last_error: BaseException | None = None

    def build_result(self, request: EvalRequest, played: PlayedRounds) -> EvalResult:
        """Return the result of an evaluation.

        Raises:
            TypeError: `metrics_fn` returned no mapping of names to numbers.
            ValueError: `metrics_fn` returned a name that results have already.
            Exception: `metrics_fn` raised it; a note says so.
        """
        episodes, seconds = episodes_of(played.rows), played.seconds
        for failure in played.unwritten:
            self.counts["write_errors"] += 1
            _log.error("a recorder could not write the evaluation of step %d: %s", request.step, failure)
        numbers: dict[str, Any] = summarise(episodes["returns"], episodes["lengths"], request.seed)
        numbers |= {"duration_s": seconds, "fps": numbers["frames"] / seconds}
        numbers |= {"step": request.step, "policy_version": played.reports[0].version}
        numbers |= self._measure(played.reports, {*numbers, "video", "episode_rewards", "episode_lengths"})
        if self._options.per_episode:
            numbers["episode_rewards"] = torch.from_numpy(episodes["returns"].copy())
            numbers["episode_lengths"] = torch.from_numpy(episodes["lengths"].copy())
        video, facts = self._write_films(request.step, played.reports)
        facts |= {"step": request.step, "seeding": played.reports[0].seeding, "retries": played.retries}
        metrics = {f"{self._options.log_prefix}/{name}": value for name, value in {**numbers, **video}.items()}
        return EvalResult(metrics, episodes, stopped=played.stopped, **facts)

    def deliver(self, result: EvalResult, weights: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        """Keep the best weights, then call `on_result`; failures of both are logged and counted.

        Args:
            result: the newest.
            weights: returns the weights of that evaluation, by model id.
        """
        options = self._options
        self.newest = {name: result[name] for name in (f"{options.log_prefix}/{name}" for name in _NEWEST)}
        if self.best is not None:
            try:
                self.best.keep(result, weights)
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
            warn(text)

    def _measure(self, reports: Sequence[Report], reserved: Collection[str]) -> dict[str, Any]:
        """Call `metrics_fn` with the trajectories and return its numbers; their names must not be reserved."""
        settings, metrics_fn = self._options.settings, self._options.metrics_fn
        if metrics_fn is None:
            return {}
        batch: Any = join_trajectories((batch for report in reports for batch in report.steps), settings.traj_format)
        batch = batch.to(settings.storing_device)
        if settings.postproc is not None:
            with note_source("postproc"):
                batch = settings.postproc(batch)
        if isinstance(batch, TensorDictBase):
            drop_private(batch)
        with note_source("metrics_fn"):
            measured = dict(metrics_fn(batch))
        for name, value in measured.items():
            if name in reserved:
                raise ValueError(f"metrics_fn gave {name!r}, which results have already; give it another name")
            if not (isinstance(name, str) and isinstance(value, float | int | torch.Tensor)):
                raise TypeError(f"metrics_fn gave {name}={value!r}; names are strings, values numbers or tensors")
        return measured

    def _write_films(self, step: int, reports: Sequence[Report]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the entry `video` or write files; also return the attributes of the result about films."""
        options = self._options
        films = [report.film for report in reports]
        frames = dict(sorted(filmed for film in films for filmed in film.frames.items()))
        facts: dict[str, Any] = {
            "video_lengths": tuple(map(len, frames.values())),
            "video_truncated": any(film.truncated for film in films),
        }
        if not frames:
            return {}, facts
        if options.video_dir is None:
            return {"video": torch.from_numpy(np.stack([*chain.from_iterable(frames.values())]))}, facts
        fps = options.video_fps or next((film.fps for film in films if film.fps), _FPS)
        stem = f"{options.log_prefix}-step{step}".replace("/", "-")
        files = {Path(options.video_dir) / f"{stem}-episode{episode}.mp4": images for episode, images in frames.items()}
        written = []
        for path, images in files.items():
            try:
                with VideoWriter(path, fps) as writer:
                    for image in images:
                        writer.write(image)
                written.append(str(path))
            except Exception:  # noqa: BLE001  it is logged and counted
                self.counts["write_errors"] += 1
                _log.exception("the film %s could not be written; the result stands", path)
        return {}, {**facts, "video_paths": tuple(written)}
