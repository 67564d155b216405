"""Names on the command line: envs, modules, folders of runs.

CartPole-v1          an id of Gymnasium
ALE/Pong-v5          an Atari game, with the usual preprocessing
module:Corridor-v0   an id that importing the module registers
module:Corridor      a class, or a function that makes an env

Modules are installed, or in the current folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from swath.cli.failure import UsageError, command_line, usage_errors, with_traceback
from swath.extras import import_extra
from swath.nearest import suggestion
from swath.report.atomic import try_lock

FRAMES_IN_A_STACK = 4


def find_env(name: str, kwargs: Mapping[str, Any]) -> Any:
    """Return the env of a name: an id of Gymnasium, or a function that makes the env.

    Args:
        name: see the module.
        kwargs: keywords of the env.

    Raises:
        UsageError: the module or the env does not exist.
        RunError: the module raises when it is imported.
    """
    from gymnasium import make, spec
    from gymnasium.error import Error

    module, _, identifier = name.rpartition(":")
    if module and "-v" not in identifier:
        maker = import_object(name)
        if not callable(maker):
            raise UsageError(f"{name} makes no env; name a class or function that makes an env, or an id")
        return partial(maker, **kwargs) if kwargs else maker
    if module:
        _import_module(module, name)
    if name.startswith("ALE/"):
        return partial(make_atari_env, name, **kwargs)
    try:
        env_spec = spec(identifier) if "-v" in identifier else None
    except Error as unknown:
        raise UsageError(f"{name}: {unknown}") from None
    if env_spec is not None and "mujoco" in str(env_spec.entry_point):
        return partial(make_mujoco_env, name, os.getpid(), **kwargs)
    return partial(make, name, **kwargs) if kwargs else name


def make_atari_env(name: str, **kwargs: Any) -> Any:
    """Make an Atari game with the usual preprocessing: 84 by 84, grey, every fourth frame, a stack of four frames."""
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    from swath.rollout.hosts.sources import Source, make_env

    import_extra("cv2", extra="atari", purpose=f"for {name}")
    game = make_env(Source(name, {"frameskip": 1, **kwargs}))
    return FrameStackObservation(AtariPreprocessing(game), FRAMES_IN_A_STACK)


def make_mujoco_env(name: str, process: int, **kwargs: Any) -> Any:
    """Make a MuJoCo env. Print each of its warnings once, and only in the process with the id `process`."""
    from gymnasium import make

    mujoco = import_extra("mujoco", extra="mujoco", purpose=f"for {name}")
    mujoco.set_mju_user_warning(_print_once if os.getpid() == process else str)
    return make(name, **kwargs)


@cache
def _print_once(warning: str) -> None:
    print("MuJoCo:", warning, file=sys.stderr)


def import_object(name: str) -> Any:
    """Import the object at `module:name`.

    Raises:
        UsageError: the module or the name does not exist.
        RunError: the module raises when it is imported.
    """
    module, _, attribute = name.rpartition(":")
    names = vars(_import_module(module, name))
    if attribute not in names:
        raise UsageError(f"{name}: {module} has no {attribute!r}{suggestion(attribute, names)}")
    return names[attribute]


def _import_module(module: str, name: str) -> Any:
    """Import a module, installed or in the current folder; add that folder to `sys.path`, as `python -m` does."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        raise UsageError(f"{name}: {missing}; modules must be installed, or in this folder") from missing
    except (Exception, SystemExit) as error:
        raise with_traceback(f"{name}: {module} cannot be imported", error) from error


def resume_command(env: str, path: Path) -> str:
    """Return the command that continues a run; the user has to name a module again."""
    return command_line("train", *([env] if ":" in env else []), "--resume", path)


class RunFolder:
    """The paths of the files of one run.

    Attributes:
        path: the folder.
        metrics: all numbers of the run, one row per update.
        events: the same for TensorBoard.
        checkpoint: the latest state.
        best: the state with the best evaluation.
        curve: the learning curve.
        video: a video of the final policy.
        summary: the numbers that sum up the run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics, self.events = path / "metrics.csv", path / "tensorboard"
        self.checkpoint, self.best = path / "checkpoint.safetensors", path / "best.safetensors"
        self.curve, self.video, self.summary = path / "curve.png", path / "video.mp4", path / "summary.json"

    def resume_hint(self, env: str) -> str:
        """Describe how to continue a run in this env that ended early."""
        if self.checkpoint.is_file():
            return f"{resume_command(env, self.path)} continues from the last checkpoint"
        return "there is no checkpoint to continue from: start again"


def make_run_folder(out: Path | None, env: str, seed: int) -> RunFolder:
    """Make the folder of a new run: `out`, or the first free one of `runs/<env>-seed<seed>`, `…-2`, `…-3`.

    Raises:
        UsageError: `out` is not empty, or the folder cannot be made.
    """
    if out is None:
        base = Path("runs") / f"{env.replace('/', '-').replace(':', '-')}-seed{seed}"
        paths = (base if number == 1 else base.with_name(f"{base.name}-{number}") for number in count(1))
        out = next(path for path in paths if not path.exists())
    with usage_errors("--out: "):
        out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise UsageError(f"--out {out} is not empty; choose another folder, or continue its run: --resume {out}")
    return RunFolder(out)


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint of a run's folder, or the file itself.

    Raises:
        UsageError: there is no checkpoint.
    """
    file = RunFolder(path).checkpoint if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"no checkpoint at {file}; give a run's folder or its .safetensors file")
    return file


@contextmanager
def lock_folder(folder: Path, command: str) -> Iterator[None]:
    """Lock a folder against other processes within the block, if its disk supports locks.

    Raises:
        UsageError: another process has the lock, or the folder cannot be made.
    """
    with usage_errors("--out: "):
        folder.mkdir(parents=True, exist_ok=True)
    with try_lock(folder) as is_locked:
        if is_locked is False:
            raise UsageError(f"another `{command}` is at work in {folder}; wait for it, or give another folder")
        yield
