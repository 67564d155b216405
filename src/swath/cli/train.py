"""`swath train`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

from cyclopts import Parameter

from swath.cli import options
from swath.cli.failure import UsageError
from swath.cli.naming import find_checkpoint, find_env


class TrainOptions(options.WorkersOptions, total=False):
    """Options of `swath train`; options that the user leaves out are missing.

    Attributes:
        frames: Total frames to collect, rounded up to full batches. [default: 100000]
        envs: Envs that each worker steps together. [default: 8]
        workers: Workers that collect; every batch has a share of each. [default: 1]
        backend: Where workers live: inline (one, in this process), process, thread or ray.
            [default: inline for one worker, else process]
        batch: Frames collected between two updates. [default: 2048]
        seed: Root of all seeds. [default: 0]
        device: Device of the networks: cpu, cuda, cuda:1; workers on Ray act on the CPU. [default: cpu]
        threads: Threads for torch; small networks are fastest with one. [default: 1]
        env_kwargs: Keywords of the env, for example --env-kwargs.map-name 8x8.
        env_processes: Processes that each worker's envs live in, for slow envs. [default: none]
        on_env_error: Effect of an exception of the env: raise ends the run, reset begins another episode in that env,
            restart replaces its worker; with both an evaluation that fails is left out. [default: raise]
        ppo: Settings of PPO, the fields of swath.learn.LearnerConfig, for example --ppo.learning-rate 1e-3.
            [default: chosen for the env]
        eval_every: Frames from one evaluation, and checkpoint, to the next; 0: only at the end. [default: a tenth of
            --frames, and more if evaluations would take over a quarter of the frames and of the time]
        eval_episodes: Episodes of an evaluation. [default: 20]
        eval_backend: Where evaluations run during the training: thread, process or ray; none: no evaluations.
            [default: thread]
        video: Film one episode of the final policy. [default: --video]
        log: Further logs than metrics.csv, with commas between: csv (no further log), tensorboard,
            wandb or wandb:PROJECT, mlflow or mlflow:EXPERIMENT, prometheus, prometheus:PORT or prometheus:ADDRESS:PORT.
            [default: tensorboard, if it is installed]
    """

    ppo: options.KeyValues
    eval_every: Annotated[options.FromZero, Parameter(group=options.EVALUATION)]
    eval_episodes: Annotated[options.Count, Parameter(group=options.EVALUATION)]
    eval_backend: Annotated[
        Literal["thread", "process", "ray", "none"], Parameter(group=options.EVALUATION, show_choices=False)
    ]
    video: Annotated[bool, Parameter(group=options.FILES)]
    log: Annotated[str, Parameter(group=options.FILES)]


def train(
    env: str | None = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(group=options.FILES, show_default=False)] = None,
    resume: Annotated[Path | None, Parameter(group=options.FILES, show_default=False)] = None,
    **settings: Unpack[TrainOptions],
) -> int:
    """Train PPO on an env and write curve, film, metrics and checkpoints.

    Ctrl-C stops after the running batch and keeps everything; a second Ctrl-C ends at once. Each evaluation writes a
    checkpoint; a kill loses the work since the last finished evaluation.

    Args:
        env: An id, for example CartPole-v1, or module:name, where name is a class or function that makes an env, or
            an id that importing the module registers. The current folder may have the module.
        out: Folder for the results, new or empty. [default: runs/ENV-seedN, runs/ENV-seedN-2 and so on]
        resume: Continue a run: its folder or a checkpoint. Weights, optimiser, schedule and counters are restored;
            simulators are not saved, so episodes begin again.
    """
    changes: dict[str, Any] = {**settings, **({} if env is None else {"env": env})}
    changes |= {name: options.parse_items(changes[name]) for name in ("ppo", "env_kwargs") if name in changes}
    config = None
    if resume is not None:
        find_checkpoint(resume)
    elif env is None:
        raise UsageError("train: name an env, for example: swath train CartPole-v1")
    else:
        config = options.RunConfig(**changes)
        find_env(env, config.env_kwargs)
    console = options.start_console()
    from swath.cli.run import run_training

    return run_training(console, config, resume, changes, out)
