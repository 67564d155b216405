"""What a collection works with: collector and dataset, new or going on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gymnasium.wrappers import TimeLimit

from swath.cli.collector_state import with_weights
from swath.cli.failure import UsageError
from swath.cli.naming import maker_named
from swath.cli.numbers import flag
from swath.cli.places import collector_keywords
from swath.collectors import Collector, ExplorationType
from swath.report.datasets import DatasetWriter
from swath.report.datasets.manifest import Manifest
from swath.rollout.hosts.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from gymnasium import Env

    from swath.cli.collect_config import CollectConfig
    from swath.learn import NetworkPolicy


def find_data(out: Path, settings: dict[str, Any], frames: int) -> Manifest | None:
    """What a command like this one has left at `out`; `None` where there is nothing.

    Raises:
        UsageError: it was another command, or asked for more frames.
        ValueError: the manifest is damaged.
    """
    found = Manifest.find(out)
    if found is None:
        return None
    for name, value in settings.items():
        if found.settings.get(name) != value:
            raise UsageError(
                f"--out {out} holds data of {flag(name)} {_spoken(found.settings.get(name))}, not {_spoken(value)}; "
                "repeat the options to go on with it, or choose another --out"
            )
    if found.frames > frames:
        raise UsageError(
            f"--out {out} holds {found.frames:,} frames, --frames {frames:,} are fewer; give more to go on with it, "
            "or choose another --out"
        )
    return found


def way_on(out: Path) -> str:
    """How a collection that was broken off goes on."""
    found = Manifest.find(out)
    if found is None or not found.frames:
        return f"no frame is in {out} yet: the same command begins anew"
    return f"the same command goes on with what is in {out}"


def source_of(config: CollectConfig) -> Source:
    """What builds the env; a limit of steps replaces an id's, and is put around what a class or function makes."""
    env, limit = maker_named(config.env), config.max_episode_steps
    if limit is None:
        return Source(env)
    return Source(env, {"max_episode_steps": limit}) if isinstance(env, str) else Source(partial(_limited, env, limit))


def build_collector(config: CollectConfig, policy: NetworkPolicy | None, missing: int) -> Collector:
    """A collector without an end, for batches that make up as many frames."""
    source = source_of(config)
    return Collector(
        source.env,
        policy,
        frames_per_batch=config.batch_of(missing),
        create_env_kwargs=source.kwargs,
        envs_per_worker=config.envs,
        seed=config.seed,
        storing_device="cpu",
        exploration_type=ExplorationType.DETERMINISTIC if config.greedy else ExplorationType.RANDOM,
        **collector_keywords(config.workers, config.backend, config.device),
    )


def open_writer(out: Path, found: Manifest | None, settings: dict[str, Any]) -> DatasetWriter:
    """Begin a dataset, or go on with the one that is there."""
    return DatasetWriter.begin(out, settings) if found is None else DatasetWriter.resume(out, found)


def go_on(collector: Collector, policy: NetworkPolicy | None, state: Any) -> None:
    """Put the collector where it was when the dataset's last part was written; episodes begin anew.

    A life that was never written is lived again, so nothing is left out; one that was is never repeated.
    """
    if state is not None:
        collector.load_state_dict(with_weights(state, {} if policy is None else policy.state_dict()))


def _limited(make: Callable[[], Env[Any, Any]], limit: int) -> TimeLimit[Any, Any]:
    return TimeLimit(make(), limit)


def _spoken(value: Any) -> str:
    if value is None:
        return "none"
    return ("off", "on")[value] if isinstance(value, bool) else str(value)
