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
from swath.cli.collector_state import with_weights, without_weights
from swath.cli.config import RunConfig
from swath.cli.failure import told_if_misfitting
from swath.evaluators import EvalResult
from swath.report.checkpoint import load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from swath.cli.parts import Parts
    from swath.learn import NetworkPolicy
    from swath.report.checkpoint import State

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
        config: the run's options.
        progress: how far it was.
        state: the rest, by part.
    """

    config: RunConfig
    progress: Progress
    state: dict[str, Any]


def state_of(config: RunConfig, parts: Parts) -> State:
    """Everything from which the run can go on but its progress, copied; simulators are not saved."""
    state = {
        "config": config.to_dict(),
        "policy": dict(parts.policy.state_dict()),
        "learner": parts.learner.state_dict(),
        "collector": without_weights(parts.collector.state_dict()),  # they are the same as "policy"
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
    with told_if_misfitting(path):
        return Saved(RunConfig.from_dict(state["config"]), Progress.from_dict(state["progress"]), state)


def give_weights(policy: NetworkPolicy, saved: Saved) -> None:
    """Give a policy the weights of a checkpoint.

    Raises:
        ValueError: they are those of a policy for other spaces; the message names the env that it was trained on.
    """
    given, own = dict(saved.state["policy"]), policy.state_dict()
    for name in sorted({*given, *own}):
        there, here = (_shape(weights.get(name)) for weights in (given, own))
        if there != here:
            raise ValueError(
                f"it was trained on {saved.config.env}, with observations or actions of another shape ({name} is "
                f"{there} in it, {here} here); name a checkpoint of the env that is here"
            )
    policy.load_state_dict(given)


def restore(parts: Parts, saved: Saved) -> None:
    """Put the parts where they were; episodes begin anew, with seeds of their own."""
    state = saved.state
    give_weights(parts.policy, saved)
    parts.learner.load_state_dict(state["learner"])
    parts.collector.load_state_dict(with_weights(state["collector"], parts.policy.state_dict()))
    torch.set_rng_state(state["random_state"])


def _shape(weight: Any) -> str:
    return str(list(weight.shape)) if isinstance(weight, torch.Tensor) else "missing"


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = {name: version(name) for name in ("torch", "tensordict", "gymnasium", "numpy")}
    return {"swath": __version__, "python": platform.python_version(), **packages}
