"""Metrics as a run of Weights & Biases, online or offline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swath.extras import need
from swath.report.csv_sink import FRAMES
from swath.report.run_id import RunId

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

PROJECT = "swath"
ID_FILE = "wandb-run-id"


class WandbSink:
    """Writes one row of history per call; its x axis is the frame count, as the metric `frames`.

    A resumed run goes on under its id. W&B drops no rows: those beyond the resumed frame stay, beside those that the
    resumed run writes again. Runs that are written offline are sent by `wandb sync`.

    Args:
        folder: where the id is kept and W&B writes its files, in `wandb/`; it is made if it is missing.
        resume_at: `None` starts a new run; a frame count goes on with the one whose id is kept there.
        project: of W&B; `None` for the one that `WANDB_PROJECT` names, else `swath`.
        name: what W&B calls the run; `None` lets it choose.
        mode: `"online"`, `"offline"` or `"disabled"`; `None` for what `WANDB_MODE` says, else online.

    Attributes:
        place: where the run can be seen: its address, or the folder of an offline run.

    Raises:
        ImportError: W&B is not installed; the message names the extra.
        FileExistsError: `resume_at` is `None`, and an id is kept in the folder.
        OSError: W&B begins no run, for lack of a login or of the network.
    """

    def __init__(
        self,
        folder: str | Path,
        resume_at: int | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        mode: str | None = None,
    ) -> None:
        wandb = need("wandb", extra="wandb", why="to write to Weights & Biases")
        home = Path(folder)
        run_id = RunId(home / ID_FILE, resume_at)
        home.mkdir(parents=True, exist_ok=True)
        known = {"id": run_id.kept, "resume": "allow"} if run_id.kept else {}
        about = {"project": project or os.environ.get("WANDB_PROJECT", PROJECT), "name": name, "mode": mode}
        self._run = _begun(wandb, {**about, **known, "dir": str(home)})
        run_id.keep(self._run.id)
        self._run.define_metric("*", step_metric=FRAMES)
        self.place = str(Path(self._run.dir).parent if self._run.offline else self._run.url)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Add one row; W&B sends or writes it from a process of its own."""
        self._run.log({FRAMES: frames, **metrics})

    def close(self) -> None:
        """Wait until everything is sent or written, and end the run."""
        self._run.finish()


def _begun(wandb: ModuleType, about: dict[str, Any]) -> Any:
    """A run beside others of this process, which prints nothing and leaves the terminal alone."""
    quiet = wandb.Settings(silent=True, console="off")
    try:
        return wandb.init(settings=quiet, reinit="create_new", **about)
    except wandb.Error as error:
        raise OSError(
            f"W&B begins no run: {error} Or write offline with mode='offline' or WANDB_MODE=offline"
        ) from error
