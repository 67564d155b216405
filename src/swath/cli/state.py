"""What a checkpoint holds of a run, and how a run goes on from it."""

from __future__ import annotations

import platform
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from math import inf
from typing import TYPE_CHECKING, Any

import torch

from swath._version import __version__
from swath.cli.config import RunConfig
from swath.cli.failure import fitting
from swath.evaluators import EvalResult
from swath.report.checkpoint import load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from swath.cli.parts import Parts
    from swath.learn import NetworkPolicy
    from swath.report.checkpoint import State

WEIGHTS = "policy_state_dict"
PARTS = ("config", "progress", "policy", "learner", "collector", "random_state")


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        frames: collected and learnt from.
        seconds: worked, over all sessions.
        version: of the policy's weights.
        evaluation: the last one; its `step` is the frame count of the policy it judged.
        best: the best mean return of an evaluation.
    """

    frames: int = 0
    seconds: float = 0.0
    version: int = 0
    evaluation: EvalResult | None = None
    best: float = -inf

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "evaluation": self.evaluation and self.evaluation.to_json()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Progress:
        """The progress that `to_dict` wrote."""
        text = values["evaluation"]
        return cls(**{**values, "evaluation": text and EvalResult.from_json(text)})


@dataclass(frozen=True)
class Saved:
    """A checkpoint of a run, opened.

    Attributes:
        file: the checkpoint.
        config: the run's options.
        progress: how far it was.
        state: the rest, by part.
    """

    file: Path
    config: RunConfig
    progress: Progress
    state: dict[str, Any]


def state_of(config: RunConfig, parts: Parts) -> State:
    """Everything from which the run can go on but its progress, copied; simulators are not saved."""
    state = {
        "config": config.to_dict(),
        "policy": dict(parts.policy.state_dict()),
        "learner": parts.learner.state_dict(),
        "collector": with_weights(parts.collector.state_dict(), None),  # they are the same as "policy"
        "random_state": torch.get_rng_state(),
        "versions": versions(),
    }
    return deepcopy(state)


def save_run(path: Path, state: State, progress: Progress) -> None:
    """Write what `state_of` gave, and the progress of that moment."""
    save_checkpoint(path, {**state, "progress": progress.to_dict()})


def open_run(path: Path) -> Saved:
    """Read a checkpoint of a run.

    Raises:
        ValueError: the file is no checkpoint, or not one of a whole run; the message names what is missing.
        UsageError: its parts are not as this version writes them.
    """
    state = load_checkpoint(path)
    missing = [name for name in PARTS if name not in state]
    if missing:
        raise ValueError(f"{path} is no checkpoint of `swath train`: it lacks {', '.join(missing)}")
    with fitting(path, "this version of Swath"):
        return Saved(path, RunConfig.from_dict(state["config"]), Progress.from_dict(state["progress"]), state)


def give_weights(policy: NetworkPolicy, saved: Saved, env: str) -> None:
    """Give a policy for this env the weights of a checkpoint.

    Raises:
        UsageError: they are those of a policy for other spaces.
    """
    with fitting(saved.file, f"{env} as it is here (it was trained on {saved.config.env})"):
        policy.load_state_dict(saved.state["policy"])


def restore(parts: Parts, saved: Saved) -> None:
    """Put the parts where they were; episodes begin anew, with seeds of their own.

    Raises:
        UsageError: the checkpoint does not fit.
    """
    state, env = saved.state, saved.config.env
    give_weights(parts.policy, saved, env)
    with fitting(saved.file, f"{env} as it is here"):
        parts.learner.load_state_dict(state["learner"])
        parts.collector.load_state_dict(with_weights(state["collector"], parts.policy.state_dict()))
        torch.set_rng_state(state["random_state"])


def with_weights(state: Any, weights: Mapping[str, Any] | None) -> Any:
    """A collector's state with these weights for each of its workers; `None` for those that are kept elsewhere."""
    if isinstance(state, dict):
        return {name: weights if name == WEIGHTS else with_weights(part, weights) for name, part in state.items()}
    return [with_weights(part, weights) for part in state] if isinstance(state, list) else state


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = {name: version(name) for name in ("torch", "tensordict", "gymnasium", "numpy")}
    return {"swath": __version__, "python": platform.python_version(), **packages}
