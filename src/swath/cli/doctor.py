"""`swath doctor`: find mistakes of an env, a policy, this machine, Ray or files, with advice."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from swath.cli.bench import frames_per_second
from swath.cli.failure import FAILED, OK, one_line, run_errors, usage_errors, user_traceback
from swath.cli.naming import RunFolder, find_env
from swath.cli.options import OPTIONS, RAY, Backend, Count, KeyValues, Text, parse_items, start_console
from swath.errors import NonFinite

ERROR, WARNING, NOTE = "error", "warning", "note"
"""Fails or gives wrong data; works at a price; good to know."""

MANIFEST = "_manifest.json"
SHM = Path("/dev/shm")  # noqa: S108  the system's own name
STORE_SHARE, STORE_MAX_BYTES = 0.3, 10 * 10**9
"""Ray's object store takes this share of the memory, up to this number of bytes."""

ANSWER_S = 45
JOIN = "import ray; ray.init('auto', log_to_driver=False); print(ray.cluster_resources().get('CPU', 0))"
"""Code for a separate process, which joins a cluster, prints its CPUs and leaves."""


class Finding(NamedTuple):
    """A mistake, with advice."""

    level: str
    what: str
    value: str
    do: str


STYLES = {ERROR: "bold red", WARNING: "yellow", NOTE: "dim"}
STEPS, ENVS, SEED, SECONDS = 200, 8, 0, 1.0
SLOW_FPS = 1_000
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
    env_kwargs: KeyValues | None = None,
    as_json: Annotated[bool, Parameter(name="--json", group=OPTIONS, negative="", show_default=False)] = False,
) -> int:
    """Check an env, a policy, this machine and Ray, or files, and say how to mend mistakes.

    The exit code is 1 if a finding is an error, 0 if not, 2 if there is nothing to check.

    Args:
        env: An id, for example CartPole-v1, or module:name, where name is a class or function that makes an env, or
            an id that importing the module registers. The current folder may have the module. Or the
            folder of a dataset or a run: all bytes are compared with their checksums.
        policy: The policy: a folder or a checkpoint of `swath train`, or module:name. [default: random actions]
        workers: Planned number of workers.
        backend: Planned place of the workers: inline, process, thread or ray. [default: left open]
        env_kwargs: Keywords of the env, for example --env-kwargs.map-name 8x8.
        as_json: Print the findings as JSON, for scripts.
    """
    kwargs = parse_items(env_kwargs or {})
    files = _files_in(Path(env))
    make = None if files else find_env(env, kwargs)
    console = start_console(stderr=as_json)  # stdout gets only JSON
    figures: dict[str, float] = {}
    plans: dict[str, str] = {}
    findings: list[Finding] = []
    from swath.cli.parts import describe_speed, find_policy

    with run_errors(env), usage_errors():
        actor = find_policy(policy, env, kwargs)
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "versions": check_versions,
        "TorchRL": check_torchrl,
        "shared memory": check_memory,
        "Ray": partial(check_ray, workers, os.environ, wanted=backend == RAY),
        "interface": partial(check_interface, make),
        "seeds": partial(check_seeds, make),
        "pickling": partial(check_pickling, make, actor),
        "collecting": partial(check_use, make, None, figures, plans),
    }
    if files:
        checks = {"files": partial(check_files, files)}
    elif policy is not None:
        checks["policy"] = partial(check_use, make, actor, figures, plans)
    with console.status("") as status:
        for name, check in checks.items():
            status.update(f"checking {name}")
            try:
                findings += check()
            except (Exception, SystemExit) as error:  # noqa: BLE001  user code may raise any exception
                text = f"{type(error).__name__}: {one_line(error)}"
                advice = FINITE if isinstance(error, NonFinite) else f"fix what raised it:\n{user_traceback(error, 3)}"
                findings.append(Finding(ERROR, name, text, advice))
    code = FAILED if any(finding.level == ERROR for finding in findings) else OK
    if as_json:
        report = {"findings": [finding._asdict() for finding in findings], "figures": figures, "plans": plans}
        print(json.dumps({"env": env, "policy": policy, **report, "machine": describe_speed({})}))
        return code
    console.print(env if files else f"{env}, {policy or 'random actions'}", soft_wrap=True)
    for level, subject, value, advice in sorted(findings, key=lambda finding: list(STYLES).index(finding.level)):
        console.print(f"{level}: {subject}: {value}", style=STYLES[level], soft_wrap=True)
        console.print(f"  do: {advice}", soft_wrap=True)
    for name, rate in figures.items():
        words = name.removesuffix("_frames_per_second").replace("_", " ")
        console.print(f"a Collector in this process, {words}: {rate:,.0f} frames/s", soft_wrap=True)
    if not files:
        console.print(describe_speed(plans), soft_wrap=True)
    ending = "" if len(findings) == 1 else "s"
    console.print(f"{len(findings)} finding{ending}" if findings else "nothing is wrong")
    return code


def check_interface(make: Any) -> Iterator[Finding]:
    """Run Gymnasium's check of a single env; check the autoreset mode of a vector env."""
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode

    with closing(_make(make)) as env, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if isinstance(env, gym.Env):
            yield from _check(env)
        elif isinstance(env, gym.vector.VectorEnv):
            mode = env.metadata.get("autoreset_mode")
            if not isinstance(mode, AutoresetMode):
                advice = 'set metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}, or its true mode, in its class'
                yield Finding(ERROR, "autoreset", f"metadata['autoreset_mode'] is {mode!r}", advice)
            elif mode is AutoresetMode.NEXT_STEP:
                value = "NEXT_STEP: the rows after ends only reset and are no transitions"
                advice = "use AutoresetMode.SAME_STEP; otherwise mask losses with batch['collector', 'mask']"
                yield Finding(WARNING, "autoreset", value, advice)
        if isinstance(env.unwrapped, gym.vector.AsyncVectorEnv):
            advice = "pass what makes one env to a collector, with envs_per_worker and env_processes"
            yield Finding(NOTE, "AsyncVectorEnv", "a process and a pipe per env: env processes are faster", advice)
    for text in dict.fromkeys(COLOURS.sub("", str(warning.message)).removeprefix("WARN: ") for warning in warned):
        if "unwrapped" not in text:  # Swath's conversion
            yield Finding(NOTE, "interface", text, "change it in the env, or leave it if it is intended")


def _check(env: Any) -> Iterator[Finding]:
    """Compare observations with their space, and run Gymnasium's check; collectors convert dtypes of one kind."""
    import numpy as np
    from gymnasium.spaces import Box
    from gymnasium.utils.env_checker import check_env
    from gymnasium.wrappers import TransformObservation

    space = env.observation_space
    checked = env.unwrapped if env.unwrapped.observation_space == space else env
    with warnings.catch_warnings(action="ignore"):  # the checks below repeat those warnings
        observation = np.asarray(env.reset(seed=SEED)[0])
    if isinstance(space, Box) and observation.dtype.kind in "biuf":
        has_shape = observation.shape == space.shape and observation.dtype.kind == space.dtype.kind
        fits = has_shape and bool(((observation >= space.low) & (observation <= space.high)).all())
        if observation.dtype != space.dtype or not fits:
            actual, stated_text = _describe_array(observation, observation), _describe_array(space.low, space.high)
            value = f"observations are {actual}, their space says {stated_text}"
            if not fits:
                yield Finding(ERROR, "interface", value, "return values of the space, or correct the space")
                return
            yield Finding(NOTE, "interface", value, "nothing, or return values of the space: they are converted")
            checked = TransformObservation(checked, partial(np.asarray, dtype=space.dtype), space)
    try:
        check_env(checked, skip_render_check=True)
    except AssertionError as error:
        advice = f"fix it in the env; {RANDOM}" if "same seed" in str(error) else "fix it in the env"
        yield Finding(ERROR, "interface", str(error), advice)


def _describe_array(low: Any, high: Any) -> str:
    """Describe arrays between two bounds: `float32 of shape (4,) from -1 to 1`."""
    values = f" from {low.min():g} to {high.max():g}" if low.size else ""
    return f"{low.dtype} of shape {low.shape}{values}"


def check_seeds(make: Any) -> Iterator[Finding]:
    """Check that two envs return the same with the same seed and actions."""
    import gymnasium as gym
    from gymnasium.utils.env_match import check_environments_match

    with closing(_make(make)) as env, closing(_make(make)) as other:
        if not isinstance(env, gym.Env):
            return
        try:
            check_environments_match(env, other, STEPS, SEED, skip_render=True, info_comparison="skip")
        except AssertionError as error:
            yield Finding(ERROR, "seeds", f"two envs of one seed differ: {error}", RANDOM)


def check_pickling(make: Any, actor: Any) -> Iterator[Finding]:
    """Find objects that cannot travel to workers in other processes."""
    from swath.pickles import pickle_value

    for subject, value in {"the env's maker": make, "the policy": actor}.items():
        try:
            pickle_value(value)
        except TypeError as error:
            advice = "create the object that cannot be pickled inside the function, which runs in the worker"
            yield Finding(ERROR, "pickling", f"{subject} cannot be pickled: {error}", advice)


def check_use(make: Any, actor: Any, figures: dict[str, float], plans: dict[str, str]) -> Iterator[Finding]:
    """Collect batches with random actions, or the policy; measure the frames per second, and ask for plans."""
    from swath.collectors.collector import Collector
    from swath.rollout.hosts.gymnasium import EnvListHost
    from swath.rollout.hosts.sources import Source, build
    from swath.rollout.hosts.torchrl import EnvOptions
    from swath.rollout.planned import status_of_env

    with closing(build(Source(make), EnvOptions(plans=True))) as host:
        envs = ENVS if isinstance(host, EnvListHost) else None
        settings: dict[str, Any] = {"frames_per_batch": 16 * (envs or host.spec.num_envs), "envs_per_worker": envs}
        plans["the env"] = status_of_env(host)
    with Collector(make, actor, seed=SEED, check_finite=True, **settings) as collector:
        frames_per_second(collector, SECONDS)
    with Collector(make, actor, seed=SEED, **settings) as collector:  # plans exclude check_finite
        name = "random_actions" if actor is None else "policy"
        figures[f"{name}_frames_per_second"] = round(frames_per_second(collector, SECONDS), 1)
        if actor is not None:
            plans["env and policy"] = collector.stats().get("plan", "")
            return
    if envs is not None and figures[f"{name}_frames_per_second"] < SLOW_FPS and (os.cpu_count() or 1) > 1:
        advice = "step envs on several cores: set env_processes, or use more workers"
        yield Finding(NOTE, "slow env", f"more than {1000 / SLOW_FPS:g} ms a step", advice)


def _make(make: Any) -> Any:
    from swath.rollout.hosts.sources import Source, make_env

    return make_env(Source(make))


def check_versions() -> Iterator[Finding]:
    """Find packages that are too old for Swath or for its extras."""
    requirements = re.findall(r"^([\w.-]+)[^>;\n]*>=\s*([\d.]+)(.*)", "\n".join(requires("swath") or ()), re.MULTILINE)
    for package, minimum, condition in requirements:
        with suppress(PackageNotFoundError):
            installed = version(package)
            if _numbers(installed) < _numbers(minimum) and not re.search(r"extra == .(dev|docs)", condition):
                advice = f'pip install --upgrade "{package}>={minimum}"'
                yield Finding(WARNING if "extra" in condition else ERROR, package, f"{installed} is too old", advice)


def check_torchrl() -> Iterator[Finding]:
    """Check that TorchRL's compiled extension loads, which prioritized replay buffers need."""
    if find_spec("torchrl") is not None:
        try:
            import_module("torchrl.data").PrioritizedSampler(max_capacity=2, alpha=0.5, beta=0.5)
        except Exception as error:  # noqa: BLE001  a wrong extension may raise any exception
            value = f"its compiled extension does not load with torch {version('torch')}: {one_line(error)}"
            advice = "install versions that fit together, as in constraints.txt: prioritized replay buffers need it"
            yield Finding(WARNING, f"torchrl {version('torchrl')}", value, advice)


def _files_in(path: Path) -> list[Path]:
    """List the manifest of a dataset or the checkpoints of a run in a folder; nothing if there are none."""
    run = RunFolder(path)
    return [file for file in (path / MANIFEST, run.checkpoint, run.best) if file.is_file()]


def check_files(files: Iterable[Path]) -> Iterator[Finding]:
    """Compare all bytes of datasets and checkpoints with their checksums."""
    from swath.report.checkpoint import load_checkpoint
    from swath.report.datasets import open_dataset

    for file in files:
        try:
            open_dataset(file.parent, verify=True) if file.name == MANIFEST else load_checkpoint(file)
        except (OSError, ValueError) as error:
            value, _, advice = one_line(error).rpartition("; ")
            yield Finding(ERROR, "files", value, advice)


def check_memory() -> Iterator[Finding]:
    """Check that Ray's object store has room; Swath's processes share memory without a name."""
    if not SHM.is_dir() or find_spec("ray") is None:
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free, needed = shutil.disk_usage(SHM).free, min(int(memory * STORE_SHARE), STORE_MAX_BYTES)
    if free < needed:
        advice = f"start the container with --shm-size={needed / 2**30:.1f}g: Ray keeps fragments on disk otherwise"
        yield Finding(WARNING, str(SHM), f"{free / 2**20:,.0f} MiB free, Ray takes {needed / 2**20:,.0f}", advice)


def check_ray(workers: int, environment: Mapping[str, str], *, wanted: bool) -> Iterator[Finding]:
    """Check that Ray is installed, that its cluster accepts this driver, and has a CPU for each worker.

    Args:
        workers: planned number of workers.
        environment: variables; Ray is started only if it is wanted or they name a cluster.
        wanted: whether the workers are planned on Ray.
    """
    level, address = ERROR if wanted else WARNING, environment.get("RAY_ADDRESS", "")
    answer: dict[str, Any] = {}
    if find_spec("ray") is None:
        if wanted:
            yield Finding(level, "Ray", "not installed", 'pip install "swath[ray]", or use --backend process')
    elif address.startswith("ray://"):
        advice = "run the script on a machine of the cluster, as `ray job submit` does: a client cannot read its memory"
        yield Finding(level, "RAY_ADDRESS", address, advice)
    elif wanted or address:
        answer = probe_cluster(environment)
    if answer.get("refused"):
        file = environment.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")
        mode = environment.get("RAY_AUTH_MODE", "not set")
        source = "RAY_AUTH_TOKEN" if environment.get("RAY_AUTH_TOKEN") else file  # in Ray's order
        value = f"the token in {source} is missing or refused; RAY_AUTH_MODE is {mode}"
        advice = f"put the output of `ray get-auth-token` on the head of the cluster into {source}"
        yield Finding(level, "Ray's token", value, f"{advice}, and set RAY_AUTH_MODE=token")
    elif "error" in answer and (address or "Could not find any running Ray instance" not in answer["error"]):
        advice = "start it with `ray start --head`, or unset RAY_ADDRESS: Swath then starts one on this machine"
        yield Finding(level, "the Ray cluster", answer["error"], advice)
    cpus = answer.get("cpus") or os.cpu_count() or 1
    if workers > cpus:
        yield Finding(level, "workers", f"{workers} on {cpus:g} CPUs", "use fewer, with more envs each, or more nodes")


def probe_cluster(environment: Mapping[str, str]) -> dict[str, Any]:
    """Join the cluster that `ray.init()` would join, and leave it again.

    Returns:
        `cpus`, or `error` and whether it `refused` the token.
    """
    variables = {**environment, "RAY_NUM_REDIS_GET_RETRIES": "3"}  # Ray gives up after some seconds instead of a minute
    command = [sys.executable, "-c", JOIN]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=ANSWER_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {ANSWER_S} s"}
    if done.returncode == 0:
        return {"cpus": float(done.stdout.split()[-1])}
    last_line = done.stderr.strip().rpartition("\n")[2]  # the exception in the traceback
    return {"error": last_line, "refused": "AuthenticationError" in done.stderr}


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3]]
