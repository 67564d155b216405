"""From what was performed to the result that is read: numbers, films, what the user measures; then who is shown it.

performed ──▶ finish: films, metrics_fn ──▶ EvalResult ──▶ show: keep_best, on_result ──▶ readable
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors.torch import save_file

from swath.errors import noted
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.recording import joined
from swath.evaluation.result import NAMES, EvalResult, Performed, result_of
from swath.evaluation.setting import module_of
from swath.evaluation.worker import Footage
from swath.report.atomic import replacing
from swath.report.video import VideoWriter
from swath.rollout.policies.calling import the_policy
from swath.rollout.spaces import Array
from swath.rollout.tensordicts import drop_private
from swath.weights.snapshot import POLICY

_SUFFIX = ".safetensors"


def _parts(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a state; extra state that is a dict is one entry for each of its own, as `name.key`."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", part) for key, part in value.items())
        else:
            yield name, value


def keeper_of(path: str | Path | None, prefix: str, policy: Any) -> Keeper | None:
    """The keeper that is asked for.

    Args:
        path: as `Keeper` takes it; `None` for none.
        prefix: of the names in results.
        policy: whose weights it is to keep; `None` where a factory builds it.

    Raises:
        ValueError: the policy has none; a path with another suffix, or files there that are something else.
    """
    if path is None:
        return None
    if policy is not None and module_of(policy) is None:
        raise ValueError(f"keep_best={str(path)!r} keeps weights, and {the_policy(policy)} has none; leave it out")
    return Keeper(path, prefix)


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
    """

    def __init__(self, path: str | Path, prefix: str) -> None:
        given = Path(path)
        if given.suffix not in ("", _SUFFIX):
            raise ValueError(f"keep_best={str(path)!r} must end in {_SUFFIX}, or be a folder without a suffix")
        self._weights = given if given.suffix else given / f"best{_SUFFIX}"
        self._result = self._weights.with_suffix(".json")
        self._key = f"{prefix}/reward"
        self.bar = self._found()

    def beaten_by(self, result: EvalResult) -> bool:
        """Whether this is better than what is kept; a tie is not, NaN never is."""
        return bool(result[self._key] > self.bar)

    def keep(self, result: EvalResult, weights: Mapping[str, Mapping[str, Any]]) -> None:
        """Write both files, each whole or not at all.

        Args:
            result: the best so far.
            weights: state by model id; the policy's entries keep their names, those of others are `<id>::<name>`.

        Raises:
            OSError: they could not be written; the old ones are whole.
            TypeError: extra state of a model that is no tensor.
        """
        named = {
            name if model_id == POLICY else f"{model_id}::{name}": value
            for model_id, state in weights.items()
            for name, value in _parts(state)
        }
        strange = [name for name, value in named.items() if not isinstance(value, torch.Tensor)]
        if strange:
            raise TypeError(f"keep_best writes tensors only; {', '.join(strange)} is extra state of another kind")
        with replacing(self._weights) as draft:
            plain = {name: value.detach().cpu().clone().contiguous() for name, value in named.items()}
            save_file(plain, str(draft))
        with replacing(self._result) as draft:
            draft.write_text(result.to_json())
        self.bar = float(result[self._key])

    def _found(self) -> float:
        """The best of what is there."""
        if not self._result.is_file():
            return -math.inf
        try:
            bar = EvalResult.from_json(self._result.read_text())[self._key]
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{self._result} is no result with {self._key!r} ({error}); move it away") from None
        return -math.inf if math.isnan(bar) else float(bar)


_log = logging.getLogger("swath")

LONG_S = 30.0
_FPS = 30.0
_NEWEST = ("step", "reward", "reward_ci_low", "reward_ci_high", "num_episodes")
"""What `stats()` has of the newest result, by its names there without prefix."""

Weights: TypeAlias = Callable[[], Mapping[str, Mapping[str, Any]]]
"""Gets the weights that a result was made with, by model id."""


class Reporter:
    """Makes results and shows them.

    Args:
        options: what they have beside the numbers, and who is shown them.
        keeper: of the best weights.

    Attributes:
        newest: of the result that was shown last; empty before the first.
        write_errors: how many films, recordings of transforms and best weights could not be written.
        callback_errors: how often `on_result` raised.
        last_error: what it raised last.
    """

    def __init__(self, options: EvaluatorOptions, keeper: Keeper | None) -> None:
        self._options, self._keeper = options, keeper
        self._warned = False
        self.newest: dict[str, float] = {}
        self.write_errors = self.callback_errors = 0
        self.last_error: BaseException | None = None

    def finish(self, performed: Performed) -> EvalResult:
        """The result of an evaluation.

        Raises:
            TypeError: `metrics_fn` gave no mapping of names to numbers.
            ValueError: it gave a name that results have already.
            Exception: what it raised, with a note.
        """
        for failure in performed.unwritten:
            self.write_errors += 1
            _log.error("a recorder could not write the evaluation of step %d: %s", performed.request.step, failure)
        measured = self._measured(performed.footage)
        more, films = self._films(performed)
        more.update(measured)
        if self._options.per_episode:
            episodes = performed.rounds.episodes()
            more["episode_rewards"] = torch.from_numpy(episodes["returns"].copy())
            more["episode_lengths"] = torch.from_numpy(episodes["lengths"].copy())
        return result_of(performed, self._options.log_prefix, films, more)

    def show(self, result: EvalResult, weights: Weights) -> None:
        """Keep the best weights, then call `on_result`; what goes wrong there changes nothing else."""
        names = [f"{self._options.log_prefix}/{name}" for name in _NEWEST]
        self.newest = {name: result[name] for name in names}
        if self._keeper is not None and self._keeper.beaten_by(result):
            try:
                self._keeper.keep(result, weights())
            except Exception:  # noqa: BLE001  it is logged and counted
                self.write_errors += 1
                _log.exception("the best weights, of step %d, could not be written; the result stands", result.step)
        if self._options.on_result is not None:
            self._call(self._options.on_result, result)

    def _call(self, on_result: Callable[[Any], Any], result: EvalResult) -> None:
        began = monotonic()
        try:
            on_result(result.to_tensordict())
        except BaseException as error:  # noqa: BLE001  it is logged, counted and kept; no exit ends our thread
            self.callback_errors += 1
            self.last_error = error
            _log.exception("on_result raised for the evaluation of step %d; the result stands", result.step)
        seconds = monotonic() - began
        if seconds > LONG_S and not self._warned:
            self._warned = True
            text = f"on_result took {seconds:.0f} s; meanwhile no evaluation begins and no result can be read"
            warnings.warn(text, UserWarning, stacklevel=2)

    def _measured(self, footage: Sequence[Footage]) -> dict[str, Any]:
        """What `metrics_fn` gives, by name."""
        if self._options.metrics_fn is None:
            return {}
        batch = self._batch(footage)
        with noted("metrics_fn"):
            measured = self._options.metrics_fn(batch)
        if not isinstance(measured, Mapping):
            raise TypeError(f"metrics_fn returned {type(measured).__name__}; it must return a dict of numbers")
        for name, value in measured.items():
            if not isinstance(name, str):
                raise TypeError(f"metrics_fn gave the name {name!r}; names are strings")
            if name in NAMES:
                raise ValueError(f"metrics_fn gave {name!r}, which results have already; give it another name")
            if not isinstance(value, float | int | torch.Tensor):
                raise TypeError(f"metrics_fn gave {name}={value!r}; give a float, an int, a bool or a tensor")
        return dict(measured)

    def _batch(self, footage: Sequence[Footage]) -> Any:
        settings = self._options.settings
        batch: Any = joined((each.steps for each in footage if each.steps is not None), settings.traj_format)
        batch = batch.to(settings.storing_device)
        if settings.postproc is not None:
            with noted("postproc"):
                batch = settings.postproc(batch)
            if batch is None:
                raise TypeError("postproc returned None; it must return the batch for metrics_fn")
        drop_private(batch)
        return batch

    def _films(self, performed: Performed) -> tuple[dict[str, Any], dict[str, Any]]:
        """Films as an entry of the result, or as files; and what the result says of them."""
        all_takes = {episode: take for footage in performed.footage for episode, take in footage.films.items()}
        takes = dict(sorted(all_takes.items()))
        films: dict[str, Any] = {
            "video_lengths": tuple(len(take) for take in takes.values()),
            "video_truncated": any(footage.film_truncated for footage in performed.footage),
        }
        options, folder = self._options, self._options.video_dir
        if folder is None or not takes:
            return {"video": torch.from_numpy(np.concatenate([*takes.values()]))} if takes else {}, films
        rates = [footage.fps for footage in performed.footage if footage.fps is not None]
        fps = options.video_fps or next(iter(rates), _FPS)
        stem = f"{options.log_prefix}-step{performed.request.step}".replace("/", "-")
        files = [(Path(folder) / f"{stem}-episode{episode}.mp4", take) for episode, take in takes.items()]
        films["video_paths"] = tuple(str(path) for path, take in files if self._written(path, take, fps))
        return {}, films

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
