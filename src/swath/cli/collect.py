"""`swath collect`: prepare, gather, say what is there."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import torch
from rich.console import Console

from swath.cli.acting import acting_policy, fingerprint
from swath.cli.collect_parts import build_collector, find_data, go_on, open_writer, way_on
from swath.cli.failure import OK, told_if_broken_off, told_in_one_line
from swath.cli.gathering import Gathering
from swath.cli.hold import claimed
from swath.cli.lookout import Lookout
from swath.cli.places import place_words
from swath.cli.stop import HINT, StopRequest
from swath.report.datasets.formats import format_at
from swath.report.display import Display
from swath.report.text import duration

if TYPE_CHECKING:
    from pathlib import Path

    from swath.cli.collect_config import CollectConfig
    from swath.learn import NetworkPolicy
    from swath.report.datasets.manifest import Manifest

COMMAND = "swath collect"


def run_collection(config: CollectConfig, out: Path) -> int:
    """Collect as asked for and return the exit code.

    Raises:
        UsageError: the env, the checkpoint, the device or what lies at `out` cannot be used; nothing was written.
        BrokenOffError: a full disk, full memory, lost workers or the env ended it; what was written is whole.
    """
    with Lookout(config.env) as lookout:
        with told_if_broken_off(config.env), told_in_one_line():
            format_at(out)
            torch.set_num_threads(config.threads)
            policy = acting_policy(config)
        with told_if_broken_off(config.env, lambda: way_on(out)), claimed(out, COMMAND):
            return _collect(config, policy, out, lookout)


def _collect(config: CollectConfig, policy: NetworkPolicy | None, out: Path, lookout: Lookout) -> int:
    console = Console(highlight=False, emoji=False, markup=False)
    settings = config.settings(fingerprint(policy))
    with told_in_one_line():
        found = find_data(out, settings, config.frames)
    missing = config.frames - (found.frames if found else 0)
    if found and not missing:
        _tell(console, out, found)
        return OK
    with told_in_one_line():
        collector = build_collector(config, policy, missing)
    with collector:
        lookout.know(collector)
        with told_in_one_line():
            writer = open_writer(out, found, settings)
            go_on(collector, policy, writer.manifest.state)
        code = _gather(Gathering(collector, writer, config.frames), config, console, lookout)
    _tell(console, out, writer.manifest)
    return code


def _gather(gathering: Gathering, config: CollectConfig, console: Console, lookout: Lookout) -> int:
    display = Display(console, config.env, _details(config), HINT)
    with closing(display), StopRequest(display.say) as stop:
        lookout.heed(stop)
        if gathering.written:
            display.say(f"goes on at {gathering.written:,} frames; simulators are not saved, so episodes begin anew")
        gathering.run(display, stop)
    _conclude(gathering, config, console)
    return OK if gathering.written >= config.frames else stop.exit_code


def _details(config: CollectConfig) -> tuple[str, ...]:
    who = "random actions" if config.policy is None else str(config.policy)
    place = place_words(config.workers, config.envs, config.backend)
    return who, place, f"seed {config.seed}"


def _conclude(gathering: Gathering, config: CollectConfig, console: Console) -> None:
    """Say what this session did."""
    rate = gathering.new / gathering.seconds
    text = f"collected {gathering.new:,} frames in {duration(gathering.seconds)}, {rate:,.0f} frames/s"
    if gathering.surplus:
        text += f"; {gathering.surplus:,} beyond --frames were not kept"
    console.print(text, soft_wrap=True)
    if gathering.written < config.frames:
        console.print(f"stopped at {gathering.written:,} frames; the same command goes on", soft_wrap=True)


def _tell(console: Console, out: Path, data: Manifest) -> None:
    """Say what is there and how to read it."""
    counts = {"frame": data.frames, "ended episode": data.episodes, "part": len(data.parts)}
    what = ", ".join(f"{count:,} {name}{'s' if count != 1 else ''}" for name, count in counts.items())
    console.print(f"{out}: {what}\nto read: swath.report.datasets.open_dataset({str(out)!r})", soft_wrap=True)
