"""Parts of commands: spaces of envs, policies, collectors, evaluators, and the checkpoints of runs."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import torch
from gymnasium import Space
from gymnasium.error import UnsupportedMode
from rich.table import Table

from swath._version import __version__
from swath.cli.failure import UsageError, one_line, optional_feature, usage_errors
from swath.cli.naming import RunFolder, find_checkpoint, find_env, import_object
from swath.cli.options import INLINE, RAY, TENSORBOARD, THREAD, CollectionConfig, RunConfig, make_table, parse_logs
from swath.collectors.collector import Collector
from swath.evaluation.evaluate_policy import evaluate_policy
from swath.evaluation.evaluator import Evaluator
from swath.evaluation.result import EvalResult
from swath.learn import NetworkPolicy, make_policy
from swath.report import sinks
from swath.report.checkpoint import load_checkpoint, save_checkpoint
from swath.report.display import number
from swath.report.sinks import EXPERIMENT, LOCAL, PORT
from swath.report.video import VideoWriter
from swath.rollout.hosts.base import ArraySpec, first_env, frame_rate
from swath.rollout.hosts.sources import Source, build, make_env
from swath.rollout.hosts.vector import is_vector_env

Spaces: TypeAlias = tuple[Space[Any], Space[Any]]

MAX_FILM_FRAMES = 3000
"""Most frames of a film."""

WEIGHTS = "policy_state_dict"

TABLE_ROWS = {
    "mean return": ("reward",),
    "95 % interval": ("reward_ci_low", "reward_ci_high"),
    "standard deviation": ("reward_std",),
    "lowest to highest": ("reward_min", "reward_max"),
    "median": ("reward_median",),
    "interquartile mean": ("reward_iqm",),
    "episode length": ("episode_length",),
    "episodes": ("num_episodes",),
}
"""Labels of the rows of an evaluation's table, and their numbers."""


def save_run(path: Path, state: dict[str, Any], progress: RunProgress) -> None:
    """Write a checkpoint: a state of the run, and its progress."""
    text = progress.evaluation and progress.evaluation.to_json()
    save_checkpoint(path, {**state, "progress": {**vars(progress), "evaluation": text}})


def describe_env(env: str, kwargs: Mapping[str, Any]) -> tuple[Spaces, int]:
    """Build and close an env; return its spaces of observations and actions, and its step limit, 0 for none.

    Raises:
        UsageError: the env does not exist, has unsupported spaces, or is batched already.
    """
    with usage_errors(f"{env}: ", TypeError), closing(build(Source(find_env(env, kwargs)))) as host:
        instance = first_env(host.env)
        if is_vector_env(instance) or not isinstance(host.spec, ArraySpec):
            raise UsageError(f"{env} is batched already, or no gymnasium env; name a function that makes a single env")
        limit = (instance.spec and instance.spec.max_episode_steps) or 0
        return (instance.observation_space, instance.action_space), limit


def make_network(env: str, spaces: Spaces, seed: int = 0) -> NetworkPolicy:
    """Return a new policy for an env with these spaces; its weights follow from the seed."""
    with torch.random.fork_rng(devices=[]), usage_errors(f"{env}: ", TypeError):
        torch.manual_seed(seed)
        return make_policy(*spaces)


def find_policy(policy: str | Path | None, env: str, kwargs: Mapping[str, Any]) -> Any:
    """Return the policy that a name means, for an env: a checkpoint of `swath train`, or an object `module:name`.

    Returns:
        A policy for `Collector`; `None` for random actions.

    Raises:
        UsageError: the policy does not exist, or is for other spaces.
    """
    if policy is None:
        return None
    if ":" in str(policy) and not Path(policy).exists():
        return import_object(str(policy))
    saved = open_run(find_checkpoint(Path(policy)))
    return saved.load_weights(make_network(env, describe_env(env, kwargs)[0]), env)


def load_policy(path: str | Path) -> NetworkPolicy:
    """Load the policy of a run of `swath train`, on the CPU.

    No env is made: its spaces are in the checkpoint.

    Args:
        path: the run's folder, or a checkpoint in it.

    Raises:
        ValueError: the checkpoint does not exist, or is damaged.
    """
    try:
        saved = open_run(find_checkpoint(Path(path)))
        return saved.load_weights(make_network(saved.config.env, saved.spaces), saved.config.env)
    except UsageError as error:
        raise ValueError(str(error)) from None


def find_device(name: str) -> torch.device:
    """Return the device of this name.

    Raises:
        UsageError: this machine cannot use it.
    """
    with usage_errors(f"--device {name} cannot be used here: ", RuntimeError, AssertionError):
        torch.zeros(1, device=name).cpu()  # the device "meta" never gives data back
    return torch.device(name)


def make_collector(config: CollectionConfig, policy: Any, **settings: Any) -> Collector:
    """Return a collector of a command; each worker adds its share to every batch."""
    keywords: dict[str, Any] = {name: getattr(config, name) for name in ("env_processes", "seed", "on_env_error")}
    device = "cpu" if config.backend == RAY else config.device  # every node has a CPU
    keywords |= {"envs_per_worker": config.envs, "storing_device": "cpu", "policy_device": device}
    if config.backend != INLINE:
        keywords |= {"backend": config.backend, "num_collectors": config.workers, "sync": True}
    return Collector(find_env(config.env, config.env_kwargs), policy, **{**keywords, **settings})


def make_evaluator(config: RunConfig, policy: NetworkPolicy) -> Evaluator:
    """Return an evaluator that plays the run's evaluation episodes, the same episodes every time."""
    place: dict[str, Any] = {"policy": policy}
    if config.eval_backend != THREAD:
        device = "cpu" if config.eval_backend == RAY else config.device
        place = {"backend": config.eval_backend, "collector_kwargs": {"num_threads": config.threads}}
        place["policy_factory"] = lambda env: make_policy(env.observation_space, env.action_space).to(device)
    if config.eval_backend == RAY:
        place["num_gpus"] = 0
    return Evaluator(
        find_env(config.env, config.env_kwargs),
        num_trajectories=config.eval_episodes,
        num_envs=min(config.envs, config.eval_episodes),
        busy_policy="queue",
        seed=config.seed,
        **place,
    )


def film_episode(config: RunConfig, policy: Any, path: Path) -> None:
    """Play episode 0 of the evaluation again, and write it as a film.

    Raises:
        ImportError: imageio-ffmpeg is not installed; the message names the extra.
        gymnasium.error.Error: the env cannot render, or a package for it is missing.
    """
    # Unless the user has set these, tell pygame and MuJoCo that there is no screen.
    names = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        names["MUJOCO_GL"] = "egl"
    for name, value in names.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings(action="ignore"):  # the first env has printed its warnings
        try:
            rendered = make_env(Source(find_env(config.env, config.env_kwargs), {"render_mode": "rgb_array"}))
        except TypeError:  # a class without this parameter
            raise UnsupportedMode(f"{config.env} has no render mode 'rgb_array'") from None
    with closing(rendered), VideoWriter(path, frame_rate(rendered) or 30) as film:

        def add_frame(*_: object) -> None:
            film.write(rendered.render())

        evaluate_policy(
            policy, rendered, 1, callback=add_frame, warn=False, max_steps=MAX_FILM_FRAMES, seed=config.seed
        )


@dataclass
class RunProgress:
    """The progress of a run.

    Attributes:
        frames: number of frames in its updates.
        seconds: seconds of work, over all sessions.
        version: version of the policy's weights.
        evaluation: the last evaluation; its `step` is the frame count of its policy.
        best: the best mean return of an evaluation.
        evaluation_frames: number of frames in all evaluations.
        evaluation_seconds: seconds of all evaluations.
    """

    frames: int = 0
    seconds: float = 0.0
    version: int = 0
    evaluation: EvalResult | None = None
    best: float = -inf
    evaluation_frames: float = 0.0
    evaluation_seconds: float = 0.0


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint of a run, opened.

    Attributes:
        file: the checkpoint.
        config: the run's options.
        progress: progress of the run.
        spaces: spaces of the env's observations and actions.
        state: states of the parts by name.
    """

    file: Path
    config: RunConfig
    progress: RunProgress
    spaces: Spaces
    state: dict[str, Any]

    def load_weights(self, policy: NetworkPolicy, env: str) -> NetworkPolicy:
        """Load the weights of the checkpoint into a policy for this env, and return the policy.

        Raises:
            UsageError: the weights are for other spaces.
        """
        with checkpoint_errors(self.file, f"the present {env} (it was trained on {self.config.env})"):
            policy.load_state_dict(self.state["policy"])
        return policy


def require_safe_env(saved: SavedRun, env: str | None, advice: str) -> None:
    """Refuse to import a module because a file names it; an id that is registered imports none.

    Args:
        saved: the checkpoint.
        env: the env that the user names, or `None`.
        advice: a command line that names it.

    Raises:
        UsageError: the checkpoint names a module, and the user names no env.
    """
    if env is None and ":" in saved.config.env:
        cause = f"{saved.file} names {saved.config.env}, and a file must not choose which code runs"
        raise UsageError(f"{cause}; if it is yours, name it again: {advice}")


def checkpoint_errors(file: Path, target: str) -> AbstractContextManager[None]:
    """Turn exceptions of a checkpoint that does not fit its target into a `UsageError`."""
    return usage_errors(f"{file} does not fit {target}: ", KeyError, TypeError, ValueError, RuntimeError)


def open_run(path: Path) -> SavedRun:
    """Read a checkpoint of a run.

    Raises:
        UsageError: the file is no checkpoint of a run, or one of another version.
    """
    with checkpoint_errors(path, "`swath train` of this version"):
        state = load_checkpoint(path)
        progress, text = state["progress"], state["progress"]["evaluation"]
        progress = RunProgress(**{**progress, "evaluation": text and EvalResult.from_json(text)})
        if not isinstance(name := state["config"]["env"], str):
            raise TypeError(f"its env is {name!r}, no name")
        return SavedRun(path, RunConfig(**state["config"]), progress, state["spaces"], state)


def with_weights(state: Any, weights: Mapping[str, Any] | None) -> Any:
    """Return a collector's state with these weights for each of its workers; `None` to leave the weights out."""
    if isinstance(state, dict):
        return {name: weights if name == WEIGHTS else with_weights(part, weights) for name, part in state.items()}
    return [with_weights(part, weights) for part in state] if isinstance(state, list) else state


def versions() -> dict[str, str]:
    """Return the versions of the packages that the numbers depend on."""
    packages = {name: version(name) for name in ("torch", "tensordict", "gymnasium", "numpy")}
    return {"swath": __version__, "python": platform.python_version(), **packages}


def describe_speed(plans: Mapping[str, str]) -> str:
    """Describe the conditions of the speed: plans, versions, CPUs and GPUs.

    Args:
        plans: parts, for example `"env and policy"`, and the status of their plan; an empty one is left out.
    """
    lines = [f"plan of {part}: {'' if state == 'on' else 'none, '}{state}" for part, state in plans.items() if state]
    packages = ", ".join(f"{name} {number}" for name, number in versions().items())
    gpus = ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return "\n".join([*lines, f"{packages}; {os.cpu_count()} CPUs; GPU: {gpus or 'none'}"])


def eval_table(results: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table with a column per evaluation; `-` for a missing number, as the interval of one episode."""
    table = make_table("evaluation", *results)
    for label, names in TABLE_ROWS.items():
        cells = [[number(result[f"eval/{name}"]) for name in names] for result in results.values()]
        table.add_row(label, *("-" if "-" in cell else " to ".join(cell) for cell in cells))
    return table


def open_logs(text: str | None, folder: RunFolder, resume_at: int | None, say: Callable[[str], None]) -> sinks.Sink:
    """Open the metrics file and the logs.

    A run that cannot write `metrics.csv` ends. A log that fails gets no more numbers. Without `--log` the numbers go to
    TensorBoard's events, if it is installed. The display names the logs.

    Raises:
        OSError: a file cannot be written, a port is taken, a service begins no run.
        ValueError: the metrics of the resumed run are damaged.
    """

    def open_log(name: str, setting: str) -> Any:
        address, _, port = setting.rpartition(":")
        match name:
            case "wandb":
                return sinks.WandbSink(folder.path, resume_at, project=setting or None, name=folder.path.name)
            case "mlflow":
                return sinks.MlflowSink(folder.path, resume_at, experiment=setting or EXPERIMENT, name=folder.path.name)
            case "prometheus":
                return sinks.PrometheusSink(int(port or PORT), address or LOCAL)
        return sinks.TensorBoardSink(folder.events, resume_at)

    def detach(name: str, log: sinks.Sink) -> sinks.DetachedSink:
        message = f"{name} gets no more numbers, metrics.csv has them all"
        return sinks.DetachedSink(log, lambda error: say(f"{message}: {one_line(error)}"))

    metrics = sinks.CsvSink(folder.metrics, resume_at)
    logs: dict[str, Any] = {name: open_log(name, setting) for name, setting in parse_logs(text).items()}
    for name, log in logs.items():
        say(f"{name}: {getattr(log, 'place', folder.events)}")
    if text is None:
        with optional_feature(say, "TensorBoard events"):
            logs[TENSORBOARD] = open_log(TENSORBOARD, "")
    return sinks.SinkGroup([metrics, *(detach(name, log) for name, log in logs.items())])
