"""`swath collect`: collect experience, and write it to disk.

```
 collector ──batch──▶ valid rows [n], at most as many as requested ──▶ dataset, with the collector's state
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
from rich.console import Console

from swath.cli.failure import HINT, OK, StopRequest, UsageError, run_errors, usage_errors
from swath.cli.naming import find_checkpoint, find_env, lock_folder
from swath.cli.options import FILES, OPTIONS, CollectionConfig, Count, WorkersOptions, parse_items, spell, start_console

if TYPE_CHECKING:
    from swath.report.datasets import DatasetManifest

NO_DATA_OPTIONS = ("frames", "batch", "device", "threads", "policy", "env_processes", "on_env_error")
"""Options that may differ when a dataset is extended; the others, and the policy's weights, determine the data."""


class CollectOptions(WorkersOptions, total=False):
    """Options of `swath collect`; options that the user leaves out are missing.

    Attributes:
        frames: Frames of the finished dataset, exactly; a larger number extends a dataset. [default: 100000]
        envs: Envs that each worker steps together. [default: 8]
        workers: Workers that collect; every batch has a share of each. [default: 1]
        backend: Where workers live: inline (one, in this process), process, thread or ray.
            [default: inline for one worker, else process]
        batch: Most frames per write, and most frames that a crash can lose. [default: 10000]
        seed: Root of all seeds. [default: 0]
        device: Device of the policy: cpu, cuda, cuda:1; on Ray always the CPU. [default: cpu]
        threads: Threads for torch; small networks are fastest with one. [default: 1]
        env_kwargs: Keywords of the env, for example --env-kwargs.map-name 8x8.
        env_processes: Processes that each worker's envs live in, for slow envs. [default: none]
        on_env_error: Effect of an exception of the env: raise ends the command, reset begins another episode in that
            env, restart replaces its worker. [default: raise]
        policy: The policy: a folder or a checkpoint of `swath train`. [default: random actions]
        greedy: Take the policy's most probable action.
        max_episode_steps: Truncate episodes after this many steps. [default: the env's own limit]
        keep_float64: Keep observations of float64; otherwise they become float32.
    """

    policy: Annotated[Path, Parameter(group=OPTIONS)]
    greedy: Annotated[bool, Parameter(group=OPTIONS)]
    max_episode_steps: Count
    keep_float64: Annotated[bool, Parameter(group=OPTIONS)]


@dataclass(frozen=True)
class CollectConfig(CollectionConfig):
    """The options of one dataset.

    Attributes:
        policy: a checkpoint of the policy, or the folder of its run; `None` for random actions.
        greedy: whether the policy takes its most probable action.
        max_episode_steps: step limit of episodes.
        keep_float64: whether observations of float64 stay float64.
    """

    batch: int = 10_000
    policy: Path | None = None
    greedy: bool = False
    max_episode_steps: int | None = None
    keep_float64: bool = False


def collect(env: str, /, *, out: Annotated[Path, Parameter(group=FILES)], **options: Unpack[CollectOptions]) -> int:
    """Collect experience in an env and write it to disk.

    The same command extends an unfinished dataset until it has the requested frames. Ctrl-C stops after the running
    batch. A dataset always has complete batches, and never a frame twice.

    Args:
        env: An id, for example CartPole-v1, or module:name, where name is a class or function that makes an env, or
            an id that importing the module registers. The current folder may have the module.
        out: Folder of the dataset. If its name ends in .parquet it gets Parquet files, otherwise memory-mapped
            TensorDicts.
    """
    values: dict[str, Any] = {**options, "env_kwargs": parse_items(options.get("env_kwargs", {}))}
    config = CollectConfig(env, **values)
    policy_id = "random"
    if config.policy is not None:
        policy_id = hashlib.sha256(find_checkpoint(config.policy).read_bytes()).hexdigest()[:16]
    elif config.greedy:
        raise UsageError("--greedy needs a policy; name it with --policy")
    find_env(env, config.env_kwargs)
    console = start_console()
    import torch

    from swath.cli.parts import describe_env, find_device, find_policy
    from swath.report.datasets import NAME, DatasetManifest, storage_for

    with run_errors(env), usage_errors():
        storage_for(out)
        torch.set_num_threads(config.threads)
        describe_env(env, config.env_kwargs)
        device, policy = find_device(config.device), find_policy(config.policy, env, config.env_kwargs)
        if policy is not None:
            policy.to(device)
        settings = {name: value for name, value in vars(config).items() if name not in NO_DATA_OPTIONS}
        # Older datasets lack some settings, which read as `None`.
        settings |= {
            "policy": policy_id,
            "env_kwargs": config.env_kwargs or None,
            "keep_float64": config.keep_float64 or None,
        }
        manifest = DatasetManifest.read(out) if (out / NAME).is_file() else None
        if manifest is not None:
            for name, value in settings.items():
                if (stored := manifest.settings.get(name)) != value:
                    advice = "repeat the options to extend it, or choose another --out"
                    raise UsageError(f"--out {out} has data of {spell(name)} {stored}, not {value}; {advice}")
            if manifest.frames > config.frames:
                raise UsageError(f"--out {out} has {manifest.frames:,} frames; give more with --frames")
    code = OK
    if manifest is None or manifest.frames < config.frames:
        with run_errors(env, lambda: "the same command continues"), lock_folder(out, "swath collect"):
            code, manifest = _collect(config, policy, out, settings, console)
    parts = f"{len(manifest.parts)} part{'' if len(manifest.parts) == 1 else 's'}"
    contents = f"{manifest.frames:,} frames, {manifest.episodes:,} ended episodes, {parts}"
    console.print(f"{out}: {contents}\nto read: swath.report.datasets.open_dataset({str(out)!r})", soft_wrap=True)
    return code


def _collect(
    config: CollectConfig, policy: Any, out: Path, settings: dict[str, Any], console: Console
) -> tuple[int, DatasetManifest]:
    """Collect the missing frames, or stop early on Ctrl-C; return the exit code and the dataset's manifest."""
    import torch

    from swath.cli.parts import make_collector, with_weights
    from swath.report.datasets import NAME, DatasetWriter
    from swath.report.display import Display, duration
    from swath.rollout.episodes.reshape import valid_rows
    from swath.rollout.policies.calling import ExplorationType

    with ExitStack() as stack:
        with usage_errors():
            writer = DatasetWriter.resume(out) if (out / NAME).is_file() else DatasetWriter.begin(out, settings)
            before = writer.manifest.frames
            missing, step = config.frames - before, config.envs * config.workers
            collector = make_collector(
                config,
                policy,
                frames_per_batch=ceil(ceil(missing / ceil(missing / config.batch)) / step) * step,  # equal batches
                max_frames_per_traj=config.max_episode_steps,
                keep_float64=config.keep_float64,
                exploration_type=ExplorationType.DETERMINISTIC if config.greedy else ExplorationType.RANDOM,
            )
            stack.enter_context(collector)
            if (state := writer.manifest.state) is not None:  # seeds and ids continue, so that no episode repeats
                collector.load_state_dict(with_weights(state, {} if policy is None else policy.state_dict()))
        policy_name = "random actions" if config.policy is None else str(config.policy)
        display = Display(console, config.env, (policy_name, config.place, f"seed {config.seed}"), HINT)
        stack.callback(display.close)
        stop, began = stack.enter_context(StopRequest(display.print)), time.monotonic()

        def show() -> None:
            counts = {"frames": writer.manifest.frames, "total_frames": config.frames}
            display.show({**collector.stats("both"), **counts})

        if before:
            display.print(f"continues at {before:,} frames; simulators are not saved, so episodes begin again")
        show()
        for batch in collector:
            rows = valid_rows(batch)[: config.frames - writer.manifest.frames]
            state = with_weights(collector.state_dict(), None)
            writer.append(rows, json.loads(json.dumps(state, default=torch.Tensor.item)))
            show()
            if writer.manifest.frames >= config.frames or stop.requested:
                break
    frames, seconds = writer.manifest.frames, time.monotonic() - began
    rate = (frames - before) / seconds
    console.print(f"collected {frames - before:,} frames in {duration(seconds)}, {rate:,.0f} frames/s", soft_wrap=True)
    if frames >= config.frames:
        return OK, writer.manifest
    console.print(f"stopped at {frames:,} frames; the same command continues", soft_wrap=True)
    return stop.exit_code, writer.manifest
