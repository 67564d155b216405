"""`swath collect`: prepare, gather, say what is there.

```
 collector ──batch──▶ rows [n], valid ones only, no more than are asked for ──▶ dataset, with the collector's state
```
"""

from __future__ import annotations

import hashlib
import time
from contextlib import closing
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from swath.cli.failure import OK, UsageError, broken_off, preparing
from swath.cli.folder import claimed
from swath.cli.naming import env_named
from swath.cli.parts import actor_named, collector_keywords, device_named, spaces_of
from swath.cli.state import with_weights
from swath.cli.stop import HINT, StopRequest
from swath.cli.words import flag, place_words
from swath.collectors import Collector, ExplorationType
from swath.keys import MASK
from swath.report.datasets import DatasetWriter, Manifest, format_at
from swath.report.display import Display
from swath.report.text import duration

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict import TensorDictBase

    from swath.cli.commands.collect import CollectConfig
    from swath.learn import NetworkPolicy

COMMAND = "swath collect"


def run_collection(config: CollectConfig, out: Path) -> int:
    """Collect as asked for and return the exit code.

    Raises:
        UsageError: the env, the checkpoint, the device or what lies at `out` cannot be used; nothing was written.
        BrokenOffError: a full disk, full memory, lost workers or the env ended it; what was written is whole.
    """
    with broken_off(config.env), preparing():
        format_at(out)
        torch.set_num_threads(config.threads)
        spaces_of(config.env)
        device, policy = device_named(config.device), actor_named(config.policy, config.env)
        if policy is not None:
            policy.to(device)
    with broken_off(config.env, lambda: "the same command goes on"), claimed(out, COMMAND):
        return _collect(config, policy, out)


def _collect(config: CollectConfig, policy: NetworkPolicy | None, out: Path) -> int:
    console = Console(highlight=False, emoji=False, markup=False)
    settings = config.settings(_fingerprint(policy))
    with preparing():
        found = Manifest.find(out)
        if found is not None:
            _require_alike(out, found, settings, config.frames)
    missing = config.frames - (found.frames if found else 0)
    if found and not missing:
        _tell(console, out, found)
        return OK
    with preparing():
        collector = _collector(config, policy, missing)
    with collector:
        with preparing():
            writer = DatasetWriter.begin(out, settings) if found is None else DatasetWriter.resume(out)
            if (state := writer.manifest.state) is not None:  # a life that was written is never lived again
                collector.load_state_dict(with_weights(state, {} if policy is None else policy.state_dict()))
        code = _gather(config, collector, writer, console)
    _tell(console, out, writer.manifest)
    return code


def _gather(config: CollectConfig, collector: Collector, writer: DatasetWriter, console: Console) -> int:
    """Collect until there are as many frames as asked for, or until the batch after which a stop was asked for."""
    who = "random actions" if config.policy is None else str(config.policy)
    place = place_words(config.workers, config.envs, config.backend)
    display = Display(console, config.env, (who, place, f"seed {config.seed}"), HINT)
    before, began = writer.manifest.frames, time.monotonic()

    def show() -> None:
        display.show({**collector.stats("both"), "frames": writer.manifest.frames, "total_frames": config.frames})

    with closing(display), StopRequest(display.say) as stop:
        if before:
            display.say(f"goes on at {before:,} frames; simulators are not saved, so episodes begin anew")
        show()
        for batch in collector:
            rows = rows_of(batch)[: config.frames - writer.manifest.frames]
            writer.append(rows, _plain(with_weights(collector.state_dict(), None)))
            show()
            if writer.manifest.frames >= config.frames or stop.requested:
                break
    new, seconds = writer.manifest.frames - before, time.monotonic() - began
    console.print(f"collected {new:,} frames in {duration(seconds)}, {new / seconds:,.0f} frames/s", soft_wrap=True)
    if writer.manifest.frames >= config.frames:
        return OK
    console.print(f"stopped at {writer.manifest.frames:,} frames; the same command goes on", soft_wrap=True)
    return stop.exit_code


def rows_of(batch: TensorDictBase) -> TensorDictBase:
    """The valid rows of a batch `[*B, T]`, `[n]`: env by env, each in the order of time."""
    rows, mask = batch.reshape(-1), batch.get(MASK, None)
    return rows if mask is None else rows[mask.reshape(-1)]


def _require_alike(out: Path, found: Manifest, settings: dict[str, Any], frames: int) -> None:
    """Refuse to go on with data of another command, or with more frames than are asked for."""
    for name, value in settings.items():
        if found.settings.get(name) != value:
            raise UsageError(
                f"--out {out} holds data of {flag(name)} {found.settings.get(name)}, not {value}; repeat the options "
                "to go on with it, or choose another --out"
            )
    if found.frames > frames:
        raise UsageError(
            f"--out {out} holds {found.frames:,} frames, --frames {frames:,} are fewer; give more to go on with it, "
            "or choose another --out"
        )


def _collector(config: CollectConfig, policy: NetworkPolicy | None, missing: int) -> Collector:
    """A collector without an end, for batches that make up as many frames."""
    step = config.envs * config.workers
    return Collector(
        env_named(config.env),
        policy,
        frames_per_batch=ceil(ceil(missing / ceil(missing / config.batch)) / step) * step,  # equal batches
        max_frames_per_traj=config.max_episode_steps,
        envs_per_worker=config.envs,
        seed=config.seed,
        storing_device="cpu",
        exploration_type=ExplorationType.DETERMINISTIC if config.greedy else ExplorationType.RANDOM,
        **collector_keywords(config.workers, config.backend, config.device),
    )


def _fingerprint(policy: NetworkPolicy | None) -> str:
    """Who acts: a policy's weights, or nobody's."""
    if policy is None:
        return "random"
    digest = hashlib.sha256()
    for name, value in sorted(policy.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return f"weights {digest.hexdigest()[:16]}"


def _plain(state: Any) -> Any:
    """A collector's state with numbers for its tensors, which have one each."""
    if isinstance(state, dict):
        return {name: _plain(part) for name, part in state.items()}
    if isinstance(state, list):
        return [_plain(part) for part in state]
    return state.item() if isinstance(state, torch.Tensor) else state


def _tell(console: Console, out: Path, data: Manifest) -> None:
    """Say what is there and how to read it."""
    counts = {"frame": data.frames, "ended episode": data.episodes, "part": len(data.parts)}
    what = ", ".join(f"{count:,} {name}{'s' if count != 1 else ''}" for name, count in counts.items())
    console.print(f"{out}: {what}\nto read: swath.report.datasets.open_dataset({str(out)!r})", soft_wrap=True)
