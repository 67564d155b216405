"""`swath collect`: collect experience, and write it to disk.

```
 collector ──batch──▶ rows [n], valid ones only, no more than are asked for ──▶ dataset, with the collector's state
```
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import closing
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

    from swath.collectors.collector import Collector
    from swath.report.datasets import DatasetManifest, DatasetWriter

OF_THE_DATA = ("env", "env_kwargs", "greedy", "max_episode_steps", "envs", "workers", "backend", "seed")
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
    """

    policy: Annotated[Path, Parameter(group=OPTIONS)]
    greedy: Annotated[bool, Parameter(group=OPTIONS)]
    max_episode_steps: Count


@dataclass(frozen=True)
class CollectConfig(Collecting):
    """What is collected.

    Attributes:
        policy: the checkpoint of who acts, or the folder of its run; `None` for random actions.
        greedy: whether it takes its most probable action.
        max_episode_steps: where episodes are truncated.
    """

    batch: int = 10_000
    policy: Path | None = None
    greedy: bool = False
    max_episode_steps: int | None = None


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
    if config.policy is not None:
        find_checkpoint(config.policy)
    elif config.greedy:
        raise UsageError("--greedy is about the actions of a policy; name one with --policy")
    env_named(env, config.env_kwargs)
    console = starting()
    import torch

    from swath.cli.parts import actor_named, device_named, spaces_of
    from swath.report.datasets import format_at

    with broken_off(env), refusing(""):
        format_at(out)
        torch.set_num_threads(config.threads)
        spaces_of(env, config.env_kwargs)
        device, policy = device_named(config.device), actor_named(config.policy, env, config.env_kwargs)
        if policy is not None:
            policy.to(device)
    with broken_off(env, lambda: "the same command goes on"), held(out, "swath collect"):
        return _collect(config, policy, out, console)


def _collect(config: CollectConfig, policy: Any, out: Path, console: Console) -> int:
    from swath.cli.parts import collector_of, with_weights
    from swath.report.datasets import NAME, DatasetManifest, DatasetWriter
    from swath.rollout.policies.calling import ExplorationType

    settings = {**{name: getattr(config, name) for name in OF_THE_DATA}, "policy": _fingerprint(policy)}
    settings["env_kwargs"] = config.env_kwargs or None
    with refusing(""):
        found = DatasetManifest.read(out) if (out / NAME).is_file() else None
        if found is not None:
            _require_alike(out, found, settings, config.frames)
        missing = config.frames - (found.frames if found else 0)
        if found and not missing:
            return _say_what_is_there(console, out, found)
        step = config.envs * config.workers
        collector = collector_of(
            config,
            policy,
            frames_per_batch=ceil(ceil(missing / ceil(missing / config.batch)) / step) * step,  # equal batches
            max_frames_per_traj=config.max_episode_steps,
            exploration_type=ExplorationType.DETERMINISTIC if config.greedy else ExplorationType.RANDOM,
        )
    with collector:
        with refusing(""):
            writer = DatasetWriter.begin(out, settings) if found is None else DatasetWriter.resume(out)
            if (state := writer.manifest.state) is not None:  # a life that was written is never lived again
                collector.load_state_dict(with_weights(state, {} if policy is None else policy.state_dict()))
        code = _gather(config, collector, writer, console)
    return _say_what_is_there(console, out, writer.manifest) or code


def _gather(config: CollectConfig, collector: Collector, writer: DatasetWriter, console: Console) -> int:
    """Collect until there are as many frames as asked for, or until the batch after which a stop was asked for."""
    from swath.cli.parts import rows_of, with_weights
    from swath.report.display import Display, duration

    who = "random actions" if config.policy is None else str(config.policy)
    display = Display(console, config.env, (who, config.place, f"seed {config.seed}"), HINT)
    before, began = writer.manifest.frames, time.monotonic()

    def show() -> None:
        display.show({**collector.stats("both"), "frames": writer.manifest.frames, "total_frames": config.frames})

    with closing(display), StopRequest(display.say) as stop:
        if before:
            display.say(f"goes on at {before:,} frames; simulators are not saved, so episodes begin anew")
        show()
        for batch in collector:
            rows = rows_of(batch)[: config.frames - writer.manifest.frames]
            state = with_weights(collector.state_dict(), None)
            writer.append(rows, json.loads(json.dumps(state, default=lambda one: one.item())))  # tensors of one number
            show()
            if writer.manifest.frames >= config.frames or stop.requested:
                break
    new, seconds = writer.manifest.frames - before, time.monotonic() - began
    console.print(f"collected {new:,} frames in {duration(seconds)}, {new / seconds:,.0f} frames/s", soft_wrap=True)
    if writer.manifest.frames >= config.frames:
        return OK
    console.print(f"stopped at {writer.manifest.frames:,} frames; the same command goes on", soft_wrap=True)
    return stop.exit_code


def _require_alike(out: Path, found: DatasetManifest, settings: dict[str, Any], frames: int) -> None:
    """Refuse to go on with data of another command, or with more frames than are asked for."""
    for name, value in settings.items():
        if found.settings.get(name) != value:
            what = f"data of {flag(name)} {found.settings.get(name)}, not {value}; repeat the options"
            raise UsageError(f"--out {out} holds {what} to go on with it, or choose another --out")
    if found.frames > frames:
        what = f"{found.frames:,} frames, --frames {frames:,} are fewer; give more"
        raise UsageError(f"--out {out} holds {what} to go on with it, or choose another --out")


def _fingerprint(policy: Any) -> str:
    """Who acts: a policy's weights, or nobody's."""
    if policy is None:
        return "random"
    from safetensors.torch import save

    weights = {name: value.detach().cpu().contiguous() for name, value in policy.state_dict().items()}
    return f"weights {hashlib.sha256(save(weights)).hexdigest()[:16]}"


def _say_what_is_there(console: Console, out: Path, data: DatasetManifest) -> int:
    """Say what is there and how to read it."""
    counts = {"frame": data.frames, "ended episode": data.episodes, "part": len(data.parts)}
    what = ", ".join(f"{count:,} {name}{'s' if count != 1 else ''}" for name, count in counts.items())
    console.print(f"{out}: {what}\nto read: swath.report.datasets.open_dataset({str(out)!r})", soft_wrap=True)
    return OK
