"""`swath train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from swath.cli.config import RunConfig
from swath.cli.failure import UsageError
from swath.cli.folder import find_checkpoint
from swath.cli.naming import env_named
from swath.cli.options import EVALUATION, FILES, OPTIONS, Given, GivenEvaluation, GivenText, backend_named, placed


def train(
    env: str | None = None,
    /,
    *,
    frames: Given = None,
    envs: Given = None,
    workers: Given = None,
    backend: GivenText = None,
    batch: Given = None,
    seed: Given = None,
    device: GivenText = None,
    threads: Given = None,
    ppo: Annotated[dict[str, str] | None, Parameter(group=OPTIONS, show_default=False)] = None,
    eval_every: GivenEvaluation = None,
    eval_episodes: GivenEvaluation = None,
    eval_backend: Annotated[str | None, Parameter(group=EVALUATION, show_default=False)] = None,
    out: Annotated[Path | None, Parameter(group=FILES, show_default=False)] = None,
    resume: Annotated[Path | None, Parameter(group=FILES, show_default=False)] = None,
    video: Annotated[bool | None, Parameter(group=FILES, show_default=False)] = None,
    log: Annotated[str | None, Parameter(group=FILES, show_default=False)] = None,
) -> int:
    """Train PPO on an env and leave curve, film, metrics and checkpoints behind.

    Ctrl-C stops after the running batch and keeps everything; a second one ends at once. Checkpoints are written with
    each evaluation; a kill costs what was done since the last one whose result is there.

    Args:
        env: An id, such as CartPole-v1, or module:name, where name is a class or function that makes an env, or an id
            that importing the module registers; modules of the current folder are found, too.
        frames: Frames to collect in all, rounded up to whole batches. [default: 100000]
        envs: Envs that each worker steps together. [default: 8]
        workers: Workers that collect; every batch has a share of each. [default: 1]
        backend: Where workers live: inline (one, in this process), process, thread or ray.
            [default: inline for one worker, else process]
        batch: Frames collected between two updates. [default: 2048]
        seed: Root of all seeds. [default: 0]
        device: Where the networks are: cpu, cuda, cuda:1; workers on Ray act on the CPU. [default: cpu]
        threads: Threads for torch; small networks are fastest with one. [default: 1]
        ppo: Settings of PPO, the fields of swath.learn.PPOConfig, such as --ppo.learning-rate 1e-3.
            [default: chosen for the env]
        eval_every: Frames from one evaluation, and checkpoint, to the next; 0: at the end only.
            [default: a tenth of --frames]
        eval_episodes: Episodes of an evaluation. [default: 20]
        eval_backend: Where evaluations run, beside the training: thread, process or ray; none: no evaluations.
            [default: thread]
        out: Folder for the results, new or empty. [default: runs/ENV-seedN, runs/ENV-seedN-2 and so on]
        resume: Go on with a run: its folder or a checkpoint. Weights, optimiser, schedule and counters go on where they
            were; simulators are not saved, episodes begin anew.
        video: Film one episode of the final policy. [default: --video]
        log: Where the numbers go beside metrics.csv, with commas between: csv (nowhere else), tensorboard,
            wandb or wandb:PROJECT, mlflow or mlflow:EXPERIMENT, prometheus, prometheus:PORT or prometheus:ADDRESS:PORT.
            [default: tensorboard, if it is installed]
    """
    given = {
        "env": env,
        "frames": frames,
        "envs": envs,
        "workers": workers,
        "backend": backend,
        "batch": batch,
        "seed": seed,
        "device": device,
        "threads": threads,
        "ppo": ppo and _settings(ppo),
        "eval_every": eval_every,
        "eval_episodes": eval_episodes,
        "eval_backend": eval_backend,
        "video": video,
        "log": log,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if resume is not None:
        find_checkpoint(resume)
        if backend is not None:
            options["backend"] = backend_named(backend)
        from swath.cli.train import resume_training  # noqa: PLC0415  imports torch

        return resume_training(resume, options, out)
    if env is None:
        raise UsageError("train: name an env, such as: swath train CartPole-v1")
    options["backend"] = placed(workers, backend)
    config = RunConfig(**options)
    env_named(env)
    from swath.cli.train import run_training  # noqa: PLC0415  imports torch

    return run_training(config, out)


def _settings(texts: dict[str, str]) -> dict[str, Any]:
    from swath.cli.settings import parse_settings  # noqa: PLC0415  imports torch

    return parse_settings(texts)
