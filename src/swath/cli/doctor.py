"""`swath doctor`: what will go wrong with an env, a policy, this machine or Ray, and what to do about it."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import warnings
from contextlib import closing
from functools import partial
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import cloudpickle
import gymnasium as gym
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.env_match import check_environments_match
from gymnasium.vector import AutoresetMode, VectorEnv
from rich.console import Console

from swath.cli.bench import frames_per_second
from swath.cli.failure import FAILED, OK, broken_off, preparing
from swath.cli.machine import ERROR, NOTE, WARNING, Finding, look_at_memory, look_at_ray, look_at_versions
from swath.cli.naming import env_named
from swath.cli.parts import actor_named
from swath.collectors import Collector
from swath.report.text import number
from swath.rollout.hosts.sources import Source, make_env
from swath.rollout.hosts.vector import is_vector_env

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Figures = dict[str, float]
    Look = Callable[[], Iterable[Finding]]

STYLES = {ERROR: "bold red", WARNING: "yellow", NOTE: "dim"}
STEPS, ENVS, SEED, SECONDS = 200, 8, 0, 1.0
PATIENCE_S = 60.0
"""After so long a look says on stderr where it is, and goes on."""
STDERR = 2
RANDOM = (
    "call super().reset(seed=seed) in reset and draw from self.np_random only: not from random, numpy.random, a clock "
    "or the order of a set"
)
COLOURS = re.compile(r"\x1b\[\d*m")


def run_doctor(env: str, policy: str | None, workers: int, backend: str | None, *, as_json: bool) -> int:
    """Examine what the options name, print what was found, and return the exit code.

    Raises:
        UsageError: the env or the policy cannot be used.
        BrokenOffError: a module that is named raises.
    """
    console = Console(highlight=False, emoji=False, markup=False, stderr=as_json)  # JSON stands alone on stdout
    make = env_named(env)
    with broken_off(env), preparing():
        actor = actor_named(policy, env)
    figures: Figures = {}
    findings: list[Finding] = []
    looks: dict[str, Look] = {
        "versions": look_at_versions,
        "CPUs": partial(look_at_cpus, workers, backend),
        "shared memory": look_at_memory,
        "Ray": partial(look_at_ray, workers, os.environ, wanted=backend == "ray"),
        "interface": partial(look_at_interface, make),
        "seeds": partial(look_at_seeds, make),
        "pickling": partial(look_at_pickling, make, actor),
        "collecting": partial(look_at_use, make, None, figures),
    }
    if policy is not None:
        looks["policy"] = partial(look_at_use, make, actor, figures)
    with console.status("") as status:
        for name, look in looks.items():
            status.update(f"looking at {name}")
            found = carried_out(name, look)
            findings += found
            if name == "interface" and any(one.level == ERROR for one in found):
                break  # no other look at the env would say more
    failed = any(one.level == ERROR for one in findings)
    if as_json:
        told = {"env": env, "policy": policy, "findings": [one._asdict() for one in findings], "figures": figures}
        print(json.dumps(told, indent=2))
    else:
        _show(console, f"{env}, {policy or 'random actions'}", findings, figures)
    return FAILED if failed else OK


def carried_out(name: str, look: Look) -> list[Finding]:
    """What a look finds, and what keeps it from its end."""
    findings: list[Finding] = []
    faulthandler.dump_traceback_later(PATIENCE_S, file=STDERR)
    try:
        findings += look()
    except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code raises what it likes
        said = " ".join(f"{type(error).__name__}: {error}".split())
        findings.append(
            Finding(ERROR, name, said, "mend what raised it:\n" + "".join(format_exception(error, limit=-3)).rstrip())
        )
    finally:
        faulthandler.cancel_dump_traceback_later()
    return findings


def look_at_cpus(workers: int, backend: str | None) -> Iterator[Finding]:
    """More workers than CPUs."""
    cpus = os.cpu_count() or 1
    if workers > cpus and backend != "ray":
        yield Finding(WARNING, "workers", f"{workers} on {cpus} CPUs", f"use {cpus}, with more envs each; or Ray")


def look_at_interface(make: Any) -> Iterator[Finding]:
    """What Gymnasium's own check says of a single env; the autoreset mode of a vector env."""
    env = make_env(Source(make))
    with closing(env), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if isinstance(env, gym.Env):
            try:
                check_env(env.unwrapped, skip_render_check=True)
            except AssertionError as error:
                yield Finding(
                    ERROR, "interface", str(error), f"mend it in the env; if answers differ with one seed, {RANDOM}"
                )
        elif isinstance(env, VectorEnv):
            yield from look_at_autoreset(env)
        else:
            yield Finding(NOTE, "interface", type(env).__name__, "nothing: it is looked at in use only")
    for text in dict.fromkeys(COLOURS.sub("", str(one.message)).removeprefix("WARN: ") for one in warned):
        yield Finding(NOTE, "interface", text, "change it in the env, or leave it if it is meant so")


def look_at_autoreset(env: VectorEnv[Any, Any, Any]) -> Iterator[Finding]:
    """Which mode a vector env declares."""
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        move = 'set metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}, or what it does, in its class'
        yield Finding(ERROR, "autoreset", f"metadata['autoreset_mode'] is {mode!r}", move)
    elif mode is AutoresetMode.NEXT_STEP:
        move = (
            'gymnasium.make_vec(…, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}); else leave out of '
            'losses what batch["collector", "mask"] leaves out'
        )
        yield Finding(WARNING, "autoreset", "NEXT_STEP: the rows after ends only reset and are no transitions", move)


def look_at_seeds(make: Any) -> Iterator[Finding]:
    """Whether two envs go the same way with the same seed and actions."""
    with closing(make_env(Source(make))) as one, closing(make_env(Source(make))) as other:
        if not isinstance(one, gym.Env):
            return
        try:
            check_environments_match(one, other, STEPS, SEED, skip_render=True, info_comparison="skip")
        except AssertionError as error:
            yield Finding(ERROR, "seeds", f"two envs of one seed differ: {error}", RANDOM)


def look_at_pickling(make: Any, actor: Any) -> Iterator[Finding]:
    """What cannot travel to workers elsewhere."""
    for what, value in {"the env's maker": make, "the policy": actor}.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # noqa: BLE001  pickling runs the user's code
            move = "build what cannot travel inside the function, in the worker, not outside it"
            yield Finding(ERROR, "pickling", f"{what} cannot be pickled: {type(error).__name__}: {error}", move)


def look_at_use(make: Any, actor: Any, figures: Figures) -> Iterator[Finding]:
    """Batches with random actions, or with the policy: what keeps them from being made, and how fast they are."""
    with closing(make_env(Source(make))) as one:
        envs = None if is_vector_env(one) or not isinstance(one, gym.Env) else ENVS
        size = one.num_envs if is_vector_env(one) else envs or 1
    collector = Collector(make, actor, frames_per_batch=16 * size, envs_per_worker=envs, seed=SEED, check_finite=True)
    with collector:
        name = "random_actions" if actor is None else "policy"
        figures[f"{name}_frames_per_second"] = round(frames_per_second(collector, SECONDS), 1)
    yield from ()


def _show(console: Console, title: str, findings: list[Finding], figures: Figures) -> None:
    console.print(title, soft_wrap=True)
    for level, what, value, do in sorted(findings, key=lambda one: list(STYLES).index(one.level)):
        console.print(f"{level}: {what}: {value}", style=STYLES[level], soft_wrap=True)
        console.print(f"  do: {do}", soft_wrap=True)
    for name, rate in figures.items():
        words = name.removesuffix("_frames_per_second").replace("_", " ")
        console.print(f"a Collector in this process, {words}: {number(rate)} frames/s", soft_wrap=True)
    console.print(f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "nothing is wrong")
