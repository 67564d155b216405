"""`swath collect`: collect experience, and write it to disk.

```
 collector ──batch──▶ rows [n], valid ones only, no more than are asked for ──▶ dataset, with the collector's state
```
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from cyclopts import Parameter

from swath.cli.failure import HINT, OK, StopRequest, UsageError, broken_off, refusing
from swath.cli.naming import env_named, find_checkpoint, held
from swath.cli.options import FILES, OPTIONS, Collecting, Count, WorkersOptions, flag, read_values, starting

if TYPE_CHECKING:
    from rich.console import Console

    from swath.report.datasets import DatasetManifest

OF_THE_DATA = ("env", "env_kwargs", "greedy", "max_episode_steps", "keep_float64", "envs", "workers", "backend", "seed")
"""Which options say what the data are, beside the policy's weights; the others say how many and how."""


class CollectOptions(WorkersOptions, total=False):
    """Options of `swath collect`; those that were not given are not there.

    Attributes:
        frames: Frames to have in the end, exactly; a larger number goes on with what is there. [default: 100000]
        envs: Envs that each worker steps together. [default: 8]
        workers: Workers that collect; every batch has a share of each. [default: 1]
        backend: Where workers live: inline (one, in this process), process, thread or ray.
            [default: inline for one worker, else process]
        batch: Most frames that are written at a time, and that a crash can cost. [default: 10000]
        seed: Root of all seeds. [default: 0]
        device: Where the policy is: cpu, cuda, cuda:1; on Ray it is on the CPU. [default: cpu]
        threads: Threads for torch; small networks are fastest with one. [default: 1]
        env_kwargs: Keywords for what makes the env, such as --env-kwargs.map-name 8x8.
        policy: Who acts: a folder of `swath train`, or a checkpoint of one. [default: random actions]
        greedy: Take the policy's most probable action.
        max_episode_steps: Truncate episodes at this many steps. [default: where the env does so]
        keep_float64: Keep observations of float64, which become float32 otherwise.
    """

    policy: Annotated[Path, Parameter(group=OPTIONS)]
    greedy: Annotated[bool, Parameter(group=OPTIONS)]
    max_episode_steps: Count
    keep_float64: Annotated[bool, Parameter(group=OPTIONS)]


@dataclass(frozen=True)
class CollectConfig(Collecting):
    """What is collected.

    Attributes:
        policy: the checkpoint of who acts, or the folder of its run; `None` for random actions.
        greedy: whether it takes its most probable action.
        max_episode_steps: where episodes are truncated.
        keep_float64: whether observations of float64 stay float64.
    """

    batch: int = 10_000
    policy: Path | None = None
    greedy: bool = False
    max_episode_steps: int | None = None
    keep_float64: bool = False


def collect(env: str, /, *, out: Annotated[Path, Parameter(group=FILES)], **options: Unpack[CollectOptions]) -> int:
    """Collect experience in an env and write it to disk.

    The same command goes on with what is there, until there are as many frames as asked for. Ctrl-C stops after the
    running batch. However it ends, what lies there are whole batches, and no frame comes twice.

    Args:
        env: An id, such as CartPole-v1, or module:name, where name is a class or function that makes an env, or an id
            that importing the module registers; modules of the current folder are found, too.
        out: Where to: a path that ends in .parquet is a folder of Parquet files, any other one of memory-mapped
            TensorDicts.
    """
    given: dict[str, Any] = {**options, "env_kwargs": read_values(options.get("env_kwargs", {}))}
    config = CollectConfig(env, **given)
    who = "random"
    if config.policy is not None:
        who = hashlib.sha256(find_checkpoint(config.policy).read_bytes()).hexdigest()[:16]
    elif config.greedy:
        raise UsageError("--greedy is about the actions of a policy; name one with --policy")
    env_named(env, config.env_kwargs)
    console = starting()
    import torch

    from swath.cli.parts import actor_named, device_named, spaces_of
    from swath.report.datasets import NAME, DatasetManifest, storage_for

    with broken_off(env), refusing():
        storage_for(out)
        torch.set_num_threads(config.threads)
        spaces_of(env, config.env_kwargs)
        device, policy = device_named(config.device), actor_named(config.policy, env, config.env_kwargs)
        if policy is not None:
            policy.to(device)
        settings = {name: getattr(config, name) for name in OF_THE_DATA}
        # What older datasets lack is `None`.
        settings |= {
            "policy": who,
            "env_kwargs": config.env_kwargs or None,
            "keep_float64": config.keep_float64 or None,
        }
        found = DatasetManifest.read(out) if (out / NAME).is_file() else None
        if found is not None:
            for name, value in settings.items():
                if (known := found.settings.get(name)) != value:
                    way_out = "repeat the options to go on with it, or choose another --out"
                    raise UsageError(f"--out {out} holds data of {flag(name)} {known}, not {value}; {way_out}")
            if found.frames > config.frames:
                raise UsageError(f"--out {out} holds {found.frames:,} frames; give more with --frames")
    code = OK
    if found is None or found.frames < config.frames:
        with broken_off(env, lambda: "the same command goes on"), held(out, "swath collect"):
            code, found = _collect(config, policy, out, settings, console)
    parts = f"{len(found.parts)} part{'s' * (len(found.parts) != 1)}"
    what = f"{found.frames:,} frames, {found.episodes:,} ended episodes, {parts}"
    console.print(f"{out}: {what}\nto read: swath.report.datasets.open_dataset({str(out)!r})", soft_wrap=True)
    return code


def _collect(
    config: CollectConfig, policy: Any, out: Path, settings: dict[str, Any], console: Console
) -> tuple[int, DatasetManifest]:
    """Collect what is missing, or until the batch after which a stop was asked for; the exit code and what is there."""
    from swath.cli.parts import collector_of, rows_of, with_weights
    from swath.report.datasets import NAME, DatasetWriter
    from swath.report.display import Display, duration
    from swath.rollout.policies.calling import ExplorationType

    with ExitStack() as stack:
        with refusing():
            writer = DatasetWriter.resume(out) if (out / NAME).is_file() else DatasetWriter.begin(out, settings)
            before = writer.manifest.frames
            missing, step = config.frames - before, config.envs * config.workers
            collector = collector_of(
                config,
                policy,
                frames_per_batch=ceil(ceil(missing / ceil(missing / config.batch)) / step) * step,  # equal batches
                max_frames_per_traj=config.max_episode_steps,
                keep_float64=config.keep_float64,
                exploration_type=ExplorationType.DETERMINISTIC if config.greedy else ExplorationType.RANDOM,
            )
            stack.enter_context(collector)
            if (state := writer.manifest.state) is not None:  # a life that was written is never lived again
                collector.load_state_dict(with_weights(state, {} if policy is None else policy.state_dict()))
        who = "random actions" if config.policy is None else str(config.policy)
        display = Display(console, config.env, (who, config.place, f"seed {config.seed}"), HINT)
        stack.callback(display.close)
        stop, began = stack.enter_context(StopRequest(display.print)), time.monotonic()

        def show() -> None:
            counts = {"frames": writer.manifest.frames, "total_frames": config.frames}
            display.show({**collector.stats("both"), **counts})

        if before:
            display.print(f"goes on at {before:,} frames; simulators are not saved, so episodes begin anew")
        show()
        for batch in collector:
            rows = rows_of(batch)[: config.frames - writer.manifest.frames]
            state = with_weights(collector.state_dict(), None)
            writer.append(rows, json.loads(json.dumps(state, default=lambda one: one.item())))  # tensors of one number
            show()
            if writer.manifest.frames >= config.frames or stop.requested:
                break
    now, seconds = writer.manifest.frames, time.monotonic() - began
    rate = (now - before) / seconds
    console.print(f"collected {now - before:,} frames in {duration(seconds)}, {rate:,.0f} frames/s", soft_wrap=True)
    if now >= config.frames:
        return OK, writer.manifest
    console.print(f"stopped at {now:,} frames; the same command goes on", soft_wrap=True)
    return stop.exit_code, writer.manifest
