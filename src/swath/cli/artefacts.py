"""What a run leaves behind when it ends: curve, summary, film."""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any

from swath.cli.failure import told_if_missing, with_extra
from swath.cli.film import film_episode
from swath.cli.journal import EVALUATION
from swath.cli.state import versions
from swath.cli.training import RETURN
from swath.report.atomic import replacing
from swath.report.curve import draw_curve, read_curve

if TYPE_CHECKING:
    from swath.cli.config import RunConfig
    from swath.cli.folder import RunFolder
    from swath.cli.state import Progress
    from swath.evaluators import EvalResult
    from swath.report.display import Display


def leave_curve(config: RunConfig, folder: RunFolder, display: Display) -> None:
    """Draw the learning curve from the metrics; without matplotlib say so."""
    with told_if_missing(display.say, "curve"):
        draw_curve(folder.curve, read_curve(folder.metrics, RETURN, f"{EVALUATION}/reward"), f"PPO on {config.env}")


def leave_film(config: RunConfig, folder: RunFolder, policy: Any, display: Display) -> None:
    """Film the policy; if that cannot be done, say why: a film must not cost a run."""
    display.doing("filming an episode")
    try:
        film_episode(config, policy, folder.video)
    except Exception as error:  # noqa: BLE001  rendering runs drivers and packages that fail in their own ways
        display.say(f"no film: {with_extra(' '.join(str(error).split()) or type(error).__name__)}")


def leave_summary(config: RunConfig, folder: RunFolder, progress: Progress) -> None:
    """Write the run in figures."""
    text = json.dumps(summary(config, progress), indent=2, allow_nan=False)
    with replacing(folder.summary) as draft:
        draft.write_text(text + "\n", encoding="utf-8")


def summary(config: RunConfig, progress: Progress) -> dict[str, Any]:
    """The run in figures; numbers that are not finite are null."""
    return {
        "env": config.env,
        "algorithm": "PPO",
        "seed": config.seed,
        "ended": "finished" if progress.frames >= config.frames else "stopped",
        "frames": progress.frames,
        "seconds": round(progress.seconds, 3),
        "frames_per_second": round(progress.frames / progress.seconds, 1) if progress.seconds else 0.0,
        "evaluation": progress.evaluation and figures(progress.evaluation),
        "best_evaluation": _finite(progress.best),
        "config": config.to_dict(),
        "versions": versions(),
    }


def figures(result: EvalResult) -> dict[str, Any]:
    """An evaluation's numbers without their prefix, and its episodes."""
    numbers = {name.partition("/")[2]: _finite(value) for name, value in result.items()}
    episodes = {name: getattr(result, name).tolist() for name in ("returns", "lengths", "seeds")}
    return {"at_frames": result.step, **numbers, **episodes}


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
