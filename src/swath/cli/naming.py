"""What names on the command line mean: envs, modules, folders of runs.

CartPole-v1          an id of Gymnasium's
ALE/Pong-v5          an id of Atari's: with the usual preprocessing
module:Corridor-v0   an id that importing the module registers
module:Corridor      a class, or a function that makes an env

Modules are those that are installed, and those in the current folder.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swath.cli.failure import UsageError, command_line, refusing, with_traceback
from swath.extras import need
from swath.nearest import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FRAMES_IN_A_STACK = 4


def env_named(name: str, kwargs: Mapping[str, Any]) -> Any:
    """What makes the env: an id of Gymnasium's, or a callable.

    Args:
        name: as above.
        kwargs: keywords for what makes it.

    Raises:
        UsageError: there is no such module, or no such env.
        BrokenOffError: the module raises when it is imported.
    """
    from gymnasium import make, spec
    from gymnasium.error import Error

    module, _, identifier = name.rpartition(":")
    if module and "-v" not in identifier:
        found = object_named(name)
        if not callable(found):
            raise UsageError(f"{name} makes no env; name a class or function that makes one, or an id")
        return partial(found, **kwargs) if kwargs else found
    if module:
        _imported(module, name)
    if name.startswith("ALE/"):
        return partial(preprocessed, name, **kwargs)
    try:
        spec(identifier) if "-v" in identifier else None
    except Error as unknown:
        raise UsageError(f"{name}: {unknown}") from None
    return partial(make, name, **kwargs) if kwargs else name


def preprocessed(name: str, **kwargs: Any) -> Any:
    """An Atari game as agents are used to it: 84 by 84, grey, every fourth frame, a stack of four of these."""
    import gymnasium as gym
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    need("cv2", extra="atari", why=f"for {name}")
    gym.register_envs(need("ale_py", extra="atari", why=f"for {name}"))
    game = gym.make(name, **{"frameskip": 1, **kwargs})
    return FrameStackObservation(AtariPreprocessing(game), FRAMES_IN_A_STACK)


def object_named(name: str) -> Any:
    """What `module:name` is.

    Raises:
        UsageError: there is no such module, or no such name in it.
        BrokenOffError: the module raises when it is imported.
    """
    module, _, attribute = name.rpartition(":")
    names = vars(_imported(module, name))
    if attribute not in names:
        raise UsageError(f"{name}: {module} has no {attribute!r}{suggestion(attribute, names)}")
    return names[attribute]


def _imported(module: str, name: str) -> Any:
    """The module; those of the current folder are found, here and by all workers, as by `python -m`."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        raise UsageError(f"{name}: {missing}; modules must be installed, or in this folder") from missing
    except (Exception, SystemExit) as error:
        raise with_traceback(f"{name}: {module} cannot be imported", error) from error


def resume_line(env: str, path: Path) -> str:
    """Write the command that goes on with a run; a module is named again."""
    return command_line("train", *([env] if ":" in env else []), "--resume", path)


class RunFolder:
    """Where the files of one run lie.

    Attributes:
        path: the folder.
        metrics: every number of the run, a row per update.
        events: the same for TensorBoard.
        checkpoint: the latest state.
        best: the state with the best evaluation.
        curve: the learning curve.
        video: a film of the final policy.
        summary: the run in figures.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics, self.events = path / "metrics.csv", path / "tensorboard"
        self.checkpoint, self.best = path / "checkpoint.safetensors", path / "best.safetensors"
        self.curve, self.video, self.summary = path / "curve.png", path / "video.mp4", path / "summary.json"

    def way_on(self, env: str) -> str:
        """Say how a run in this env that was broken off goes on."""
        if self.checkpoint.is_file():
            return f"{resume_line(env, self.path)} goes on from what was saved"
        return "nothing was saved to go on with: start again"


def new_folder(out: Path | None, env: str, seed: int) -> RunFolder:
    """Make the folder of a new run: `out`, or the first of `runs/<env>-seed<seed>`, `…-2`, `…-3` that is free.

    Raises:
        UsageError: `out` is not empty, or the folder cannot be made.
    """
    if out is None:
        first = Path("runs") / f"{env.replace('/', '-').replace(':', '-')}-seed{seed}"
        paths = (first if number == 1 else first.with_name(f"{first.name}-{number}") for number in count(1))
        out = next(path for path in paths if not path.exists())
    with refusing("--out: "):
        out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise UsageError(f"--out {out} is not empty; choose another folder, or go on with its run: --resume {out}")
    return RunFolder(out)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a user means by a file or by a run's folder.

    Raises:
        UsageError: there is none.
    """
    file = RunFolder(path).checkpoint if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"no checkpoint at {file}; give a run's folder or a .safetensors file of one")
    return file


@contextmanager
def held(folder: Path, command: str) -> Iterator[None]:
    """Within the block no other process works in this folder.

    The system lets go of the lock when the process ends, however it ends. Some network disks have no locks.

    Raises:
        UsageError: another process holds it, or it cannot be made.
    """
    import fcntl  # Windows has none

    with refusing("--out: "):
        folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another `{command}` is at work in {folder}; wait for it, or give another folder"
            raise UsageError(what) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)
