"""The commands and their options."""

from __future__ import annotations

import sys
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter

from swath._version import __version__
from swath.cli.failure import FAILED, INTERRUPTED, USAGE, BrokenOffError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import Token

HELP = """Train reinforcement learning policies and evaluate them.

swath train CartPole-v1             trains PPO; results under runs/
swath eval runs/CartPole-v1-seed0   repeats its final evaluation
"""

app = App(name="swath", help=HELP, help_format="plaintext", version=__version__)

_TRAINING = Group("Training", sort_key=1)
_EVALUATION = Group("Evaluation", sort_key=2)
_FILES = Group("Files", sort_key=3)


def _count(_type: Any, tokens: Sequence[Token]) -> int:
    """Read `100000`, `100_000` and `1e5`."""
    try:
        value = float(tokens[0].value)
    except ValueError:
        value = nan
    if not value.is_integer():
        raise UsageError(f"{tokens[0].keyword} {tokens[0].value} is no whole number, such as 20000 or 2e4")
    return int(value)


Count = Annotated[int | None, Parameter(group=_TRAINING, show_default=False, converter=_count)]
EvalCount = Annotated[int | None, Parameter(group=_EVALUATION, show_default=False, converter=_count)]


@app.command(usage="Usage: swath train ENV [OPTIONS]", sort_key=1)
def train(
    env: str | None = None,
    /,
    *,
    frames: Count = None,
    envs: Count = None,
    batch: Count = None,
    seed: Count = None,
    device: Annotated[str | None, Parameter(group=_TRAINING, show_default=False)] = None,
    threads: Count = None,
    ppo: Annotated[dict[str, str] | None, Parameter(group=_TRAINING, show_default=False)] = None,
    eval_every: EvalCount = None,
    eval_episodes: EvalCount = None,
    out: Annotated[Path | None, Parameter(group=_FILES, show_default=False)] = None,
    resume: Annotated[Path | None, Parameter(group=_FILES, show_default=False)] = None,
    video: Annotated[bool | None, Parameter(group=_FILES, show_default=False)] = None,
) -> int:
    """Train PPO on a Gymnasium env and leave curve, film, metrics and checkpoints behind.

    Ctrl-C stops after the running batch and keeps everything; a second one ends at once.

    Args:
        env: Id of the env, such as CartPole-v1, HalfCheetah-v5 or module:id, where importing the module registers it.
        frames: Frames to collect in all, rounded up to whole batches. [default: 100000]
        envs: Envs stepped together. [default: 8]
        batch: Frames collected between two updates. [default: 2048]
        seed: Root of all seeds. [default: 0]
        device: Where the networks are: cpu, cuda, cuda:1. [default: cpu]
        threads: Threads for torch; small networks are fastest with one. [default: 1]
        ppo: Settings of PPO, the fields of swath.learn.PPOConfig, such as --ppo.learning-rate 1e-3.
            [default: chosen for the env]
        eval_every: Frames from one evaluation to the next; 0: at the end only. [default: a tenth of --frames]
        eval_episodes: Episodes of an evaluation. [default: 20]
        out: Folder for the results, new or empty. [default: runs/ENV-seedN, runs/ENV-seedN-2 and so on]
        resume: Go on with a run: its folder or a checkpoint. Weights, optimiser, schedule and counters go on where they
            were; simulators are not saved, episodes begin anew.
        video: Film one episode of the final policy. [default: --video]
    """
    from swath.cli.settings import parse_settings  # noqa: PLC0415  imports torch
    from swath.cli.train import run_training  # noqa: PLC0415  imports torch

    given = {
        "env": env,
        "frames": frames,
        "envs": envs,
        "batch": batch,
        "seed": seed,
        "device": device,
        "threads": threads,
        "ppo": ppo and parse_settings(ppo),
        "eval_every": eval_every,
        "eval_episodes": eval_episodes,
        "video": video,
    }
    return run_training({name: value for name, value in given.items() if value is not None}, out, resume)


@app.command(name="eval", usage="Usage: swath eval CHECKPOINT [OPTIONS]", sort_key=2)
def evaluate(
    checkpoint: Path,
    /,
    *,
    episodes: EvalCount = None,
    seed: EvalCount = None,
    device: Annotated[str | None, Parameter(group=_EVALUATION, show_default=False)] = None,
) -> int:
    """Repeat the evaluation of a checkpoint with the same episodes, and print it beside the stored one.

    Args:
        checkpoint: A run's folder, or a .safetensors file of one.
        episodes: Episodes to play. [default: as many as in the run]
        seed: Root of the episodes' seeds. [default: that of the run]
        device: Where the networks are. [default: cpu]
    """
    from swath.cli.evaluate import run_evaluation  # noqa: PLC0415  imports torch

    given = {"eval_episodes": episodes, "seed": seed, "device": device}
    return run_evaluation(checkpoint, {name: value for name, value in given.items() if value is not None})


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line and return its exit code; errors of the user are one line on stderr and code 2.

    What ends a run from outside, such as a full disk, is one line and code 1.
    """
    try:
        command, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False)
        answer: Any = command(*bound.args, **bound.kwargs)
    except CycloptsError as error:
        return _complain(" ".join(str(error).split()), "swath --help shows what there is")
    except UsageError as error:
        return _complain(str(error))
    except BrokenOffError as error:
        _complain(str(error))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return answer or 0


def _complain(*parts: str) -> int:
    print("swath:", "; ".join(part.rstrip(".") for part in parts), file=sys.stderr)
    return USAGE
