"""`swath doctor`: what is wrong with an env, a policy, this machine, Ray or the files of a folder, and what to do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from swath.cli.bench import frames_per_second
from swath.cli.failure import FAILED, OK, broken_off, one_line, refusing
from swath.cli.naming import RunFolder, env_named
from swath.cli.options import OPTIONS, RAY, Backend, Count, Text, Words, read_values, starting
from swath.errors import NonFinite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

ERROR, WARNING, NOTE = "error", "warning", "note"
"""It fails or gives wrong data; it works at a price; it is good to know."""

MANIFEST = "_manifest.json"
SHM = Path("/dev/shm")  # noqa: S108  the system's own name
STORE_PART, STORE_MOST = 0.3, 10 * 10**9
"""Ray's object store takes this part of the memory, and no more bytes than that."""

ANSWER_S = 45
JOIN = "import ray; ray.init('auto', log_to_driver=False); print(ray.cluster_resources().get('CPU', 0))"
"""Asks a cluster in a process of its own, which is no part of it afterwards."""


class Finding(NamedTuple):
    """One thing that is not as it should be, and what to do about it."""

    level: str
    what: str
    value: str
    do: str


STYLES = {ERROR: "bold red", WARNING: "yellow", NOTE: "dim"}
STEPS, ENVS, SEED, SECONDS = 200, 8, 0, 1.0
RANDOM = "call super().reset(seed=seed) in reset; draw from self.np_random only, not from random, sets or a clock"
FINITE = "find what step or reset, or the policy, computes it from: divisions by 0, logarithms, sums that overflow"
COLOURS = re.compile(r"\x1b\[\d*m")


def doctor(
    env: str,
    /,
    *,
    policy: Text | None = None,
    workers: Count = 1,
    backend: Backend | None = None,
    env_kwargs: Words | None = None,
    as_json: Annotated[bool, Parameter(name="--json", group=OPTIONS, negative="", show_default=False)] = False,
) -> int:
    """Look for what is wrong with an env, a policy, this machine and Ray, or with files, and say what to do about it.

    The exit code is 1 if there is an error among what was found, 0 if not, 2 if there is nothing to look at.

    Args:
        env: An id, such as CartPole-v1, or module:name, where name is a class or function that makes an env, or an id
            that importing the module registers; modules of the current folder are found, too. Or the folder of a
            dataset or a run: all its bytes are compared with their checksums.
        policy: Who acts: a folder of `swath train`, a checkpoint of one, or module:name. [default: random actions]
        workers: Workers that there are to be.
        backend: Where they are to live: inline, process, thread or ray. [default: left open]
        env_kwargs: Keywords for what makes the env, such as --env-kwargs.map-name 8x8.
        as_json: Print what was found as JSON, for scripts.
    """
    kwargs = read_values(env_kwargs or {})
    files = _files_in(Path(env))
    make = None if files else env_named(env, kwargs)
    console = starting(stderr=as_json)  # JSON stands alone on stdout
    figures: dict[str, float] = {}
    findings: list[Finding] = []
    from swath.cli.parts import actor_named

    with broken_off(env), refusing():
        actor = actor_named(policy, env, kwargs)
    looks: dict[str, Callable[[], Iterable[Finding]]] = {
        "versions": look_at_versions,
        "TorchRL": look_at_torchrl,
        "shared memory": look_at_memory,
        "Ray": partial(look_at_ray, workers, os.environ, wanted=backend == RAY),
        "interface": partial(look_at_interface, make),
        "seeds": partial(look_at_seeds, make),
        "pickling": partial(look_at_pickling, make, actor),
        "collecting": partial(look_at_use, make, None, figures),
    }
    if files:
        looks = {"files": partial(look_at_files, files)}
    elif policy is not None:
        looks["policy"] = partial(look_at_use, make, actor, figures)
    with console.status("") as status:
        for name, look in looks.items():
            status.update(f"looking at {name}")
            try:
                findings += look()
            except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code raises what it likes
                trace = "".join(format_exception(error, limit=-3)).rstrip()
                text = f"{type(error).__name__}: {one_line(error)}"
                move = FINITE if isinstance(error, NonFinite) else f"fix what raised it:\n{trace}"
                findings.append(Finding(ERROR, name, text, move))
    code = FAILED if any(one.level == ERROR for one in findings) else OK
    if as_json:
        found = [one._asdict() for one in findings]
        print(json.dumps({"env": env, "policy": policy, "findings": found, "figures": figures}))
        return code
    console.print(env if files else f"{env}, {policy or 'random actions'}", soft_wrap=True)
    for level, what, value, do in sorted(findings, key=lambda one: list(STYLES).index(one.level)):
        console.print(f"{level}: {what}: {value}", style=STYLES[level], soft_wrap=True)
        console.print(f"  do: {do}", soft_wrap=True)
    for name, rate in figures.items():
        words = name.removesuffix("_frames_per_second").replace("_", " ")
        console.print(f"a Collector in this process, {words}: {rate:,.0f} frames/s", soft_wrap=True)
    console.print(f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "nothing is wrong")
    return code


def look_at_interface(make: Any) -> Iterator[Finding]:
    """What Gymnasium's own check says of a single env; the autoreset mode of a vector env."""
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode

    with closing(_made(make)) as env, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if isinstance(env, gym.Env):
            yield from _check(env)
        elif isinstance(env, gym.vector.VectorEnv):
            mode = env.metadata.get("autoreset_mode")
            if not isinstance(mode, AutoresetMode):
                move = 'set metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}, or what it does, in its class'
                yield Finding(ERROR, "autoreset", f"metadata['autoreset_mode'] is {mode!r}", move)
            elif mode is AutoresetMode.NEXT_STEP:
                what = "NEXT_STEP: the rows after ends only reset and are no transitions"
                move = (
                    "use AutoresetMode.SAME_STEP; else leave out of losses what batch['collector', 'mask'] leaves out"
                )
                yield Finding(WARNING, "autoreset", what, move)
    for text in dict.fromkeys(COLOURS.sub("", str(one.message)).removeprefix("WARN: ") for one in warned):
        if "unwrapped" not in text:  # our own conversion
            yield Finding(NOTE, "interface", text, "change it in the env, or leave it if it is meant so")


def _check(env: Any) -> Iterator[Finding]:
    """Compare observations with their space, and run Gymnasium's check; collectors convert dtypes of one kind."""
    import numpy as np
    from gymnasium.spaces import Box
    from gymnasium.utils.env_checker import check_env
    from gymnasium.wrappers import TransformObservation

    checked, space = env.unwrapped, env.observation_space
    seen = np.asarray(checked.reset(seed=SEED)[0])
    if isinstance(space, Box) and seen.dtype.kind in "biuf":
        has_shape = seen.shape == space.shape and seen.dtype.kind == space.dtype.kind
        fits = has_shape and bool(((seen >= space.low) & (seen <= space.high)).all())
        if seen.dtype != space.dtype or not fits:
            what = (
                f"observations are {_array_words(seen, seen)}, their space says {_array_words(space.low, space.high)}"
            )
            if not fits:
                yield Finding(
                    ERROR, "interface", what, "return what the space says, or have the space say what is returned"
                )
                return
            yield Finding(NOTE, "interface", what, "nothing, or return what the space says: they are converted")
            checked = TransformObservation(checked, partial(np.asarray, dtype=space.dtype), space)
    try:
        check_env(checked, skip_render_check=True)
    except AssertionError as error:
        move = f"fix it in the env; {RANDOM}" if "same seed" in str(error) else "fix it in the env"
        yield Finding(ERROR, "interface", str(error), move)


def _array_words(low: Any, high: Any) -> str:
    """Describe arrays between two bounds: `float32 of shape (4,) from -1 to 1`."""
    values = f" from {low.min():g} to {high.max():g}" if low.size else ""
    return f"{low.dtype} of shape {low.shape}{values}"


def look_at_seeds(make: Any) -> Iterator[Finding]:
    """Whether two envs go the same way with the same seed and actions."""
    import gymnasium as gym
    from gymnasium.utils.env_match import check_environments_match

    with closing(_made(make)) as one, closing(_made(make)) as other:
        if not isinstance(one, gym.Env):
            return
        try:
            check_environments_match(one, other, STEPS, SEED, skip_render=True, info_comparison="skip")
        except AssertionError as error:
            yield Finding(ERROR, "seeds", f"two envs of one seed differ: {error}", RANDOM)


def look_at_pickling(make: Any, actor: Any) -> Iterator[Finding]:
    """Name what cannot travel to workers elsewhere."""
    from swath.pickles import pickled

    for what, value in {"the env's maker": make, "the policy": actor}.items():
        try:
            pickled(value)
        except TypeError as error:
            move = "build what cannot travel inside the function, in the worker, not outside it"
            yield Finding(ERROR, "pickling", f"{what} cannot be pickled: {error}", move)


def look_at_use(make: Any, actor: Any, figures: dict[str, float]) -> Iterator[Finding]:
    """Batches with random actions, or with the policy: what keeps them from being made, and how fast they are."""
    import gymnasium as gym

    from swath.collectors.collector import Collector
    from swath.rollout.hosts.vector import is_vector_env

    with closing(_made(make)) as one:
        envs = None if is_vector_env(one) or not isinstance(one, gym.Env) else ENVS
        size = one.num_envs if is_vector_env(one) else envs or 1
    collector = Collector(make, actor, frames_per_batch=16 * size, envs_per_worker=envs, seed=SEED, check_finite=True)
    with collector:
        name = "random_actions" if actor is None else "policy"
        figures[f"{name}_frames_per_second"] = round(frames_per_second(collector, SECONDS), 1)
    yield from ()


def _made(make: Any) -> Any:
    from swath.rollout.hosts.sources import Source, make_env

    return make_env(Source(make))


def look_at_versions() -> Iterator[Finding]:
    """Packages that are older than Swath, or an extra of it, needs."""
    asked = re.findall(r"^([\w.-]+)[^>;\n]*>=\s*([\d.]+)(.*)", "\n".join(requires("swath") or ()), re.MULTILINE)
    for package, least, condition in asked:
        with suppress(PackageNotFoundError):
            have = version(package)
            if _numbers(have) < _numbers(least) and not re.search(r"extra == .(dev|docs)", condition):
                move = f'pip install --upgrade "{package}>={least}"'
                yield Finding(WARNING if "extra" in condition else ERROR, package, f"{have} is too old", move)


def look_at_torchrl() -> Iterator[Finding]:
    """Find out whether TorchRL's compiled extension loads, which prioritized replay buffers need."""
    if find_spec("torchrl") is not None:
        try:
            import_module("torchrl.data").PrioritizedSampler(max_capacity=2, alpha=0.5, beta=0.5)
        except Exception as error:  # noqa: BLE001  an extension that does not fit fails in its own ways
            what = f"its compiled extension does not load with torch {version('torch')}: {one_line(error)}"
            move = "install versions that fit together, as in constraints.txt: prioritized replay buffers need it"
            yield Finding(WARNING, f"torchrl {version('torchrl')}", what, move)


def _files_in(path: Path) -> list[Path]:
    """List the manifest of a dataset or the checkpoints of a run in a folder; nothing if there are none."""
    run = RunFolder(path)
    return [file for file in (path / MANIFEST, run.checkpoint, run.best) if file.is_file()]


def look_at_files(files: Iterable[Path]) -> Iterator[Finding]:
    """Compare all bytes of datasets and checkpoints with their checksums."""
    from swath.report.checkpoint import load_checkpoint
    from swath.report.datasets import open_dataset

    for file in files:
        try:
            open_dataset(file.parent, verify=True) if file.name == MANIFEST else load_checkpoint(file)
        except (OSError, ValueError) as error:
            what, _, move = one_line(error).rpartition("; ")
            yield Finding(ERROR, "files", what, move)


def look_at_memory() -> Iterator[Finding]:
    """Too little room for Ray's object store; Swath's own processes share memory without a name."""
    if not SHM.is_dir() or find_spec("ray") is None:
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free, wanted = shutil.disk_usage(SHM).free, min(int(memory * STORE_PART), STORE_MOST)
    if free < wanted:
        move = f"start the container with --shm-size={wanted / 2**30:.1f}g: Ray keeps fragments on disk otherwise"
        yield Finding(WARNING, str(SHM), f"{free / 2**20:,.0f} MiB free, Ray takes {wanted / 2**20:,.0f}", move)


def look_at_ray(workers: int, environment: Mapping[str, str], *, wanted: bool) -> Iterator[Finding]:
    """Whether Ray is there, its cluster lets us in, and has a CPU for each worker.

    Args:
        workers: how many there are to be.
        environment: variables; Ray is asked only if it is wanted or they name a cluster.
        wanted: whether workers are to be on Ray.
    """
    level, address = ERROR if wanted else WARNING, environment.get("RAY_ADDRESS", "")
    answer: dict[str, Any] = {}
    if find_spec("ray") is None:
        if wanted:
            yield Finding(level, "Ray", "not installed", 'pip install "swath[ray]", or use --backend process')
    elif address.startswith("ray://"):
        move = "run the script on a machine of the cluster, as `ray job submit` does: a client cannot read its memory"
        yield Finding(level, "RAY_ADDRESS", address, move)
    elif wanted or address:
        answer = ask(environment)
    if answer.get("refused"):
        file = environment.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")
        mode = environment.get("RAY_AUTH_MODE", "not set")
        there = "RAY_AUTH_TOKEN" if environment.get("RAY_AUTH_TOKEN") else file  # Ray's own order
        what = f"the one in {there} is missing or refused; RAY_AUTH_MODE is {mode}"
        get = f"put what `ray get-auth-token` prints on the head of the cluster into {there}"
        yield Finding(level, "Ray's token", what, f"{get}, and set RAY_AUTH_MODE=token")
    elif "said" in answer and (address or "Could not find any running Ray instance" not in answer["said"]):
        move = "start it with `ray start --head`, or unset RAY_ADDRESS: Swath then starts one on this machine"
        yield Finding(level, "the Ray cluster", answer["said"], move)
    cpus = answer.get("cpus") or os.cpu_count() or 1
    if workers > cpus:
        yield Finding(level, "workers", f"{workers} on {cpus:g} CPUs", "use fewer, with more envs each, or more nodes")


def ask(environment: Mapping[str, str]) -> dict[str, Any]:
    """Join the cluster that `ray.init()` would join, and leave it again.

    Returns:
        `cpus`, or `said` and whether it `refused` the token.
    """
    known = {**environment, "RAY_NUM_REDIS_GET_RETRIES": "3"}  # has Ray give up after some seconds, not a minute
    command = [sys.executable, "-c", JOIN]
    try:
        done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=ANSWER_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return {"said": f"no answer in {ANSWER_S} s"}
    if done.returncode == 0:
        return {"cpus": float(done.stdout.split()[-1])}
    said = done.stderr.strip().rpartition("\n")[2]  # the last line of the traceback
    return {"said": said, "refused": "AuthenticationError" in done.stderr}


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3]]
