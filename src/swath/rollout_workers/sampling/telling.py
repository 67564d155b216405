"""What samplers say of sub-envs: where one has raised, and that an episode seems to have no end."""

from __future__ import annotations

from swath.errors import warn
from swath.rollout.hosts.base import EnvRaised

LONG = 5_000


class LongEpisodes:
    """Warns, once per sub-env, of episodes that are waited for in vain; `batch_mode="complete_episodes"` waits."""

    def __init__(self) -> None:
        self._warned: set[int] = set()

    def note(self, env: int, steps: int, wanted: int) -> None:
        """The episode of a sub-env has lasted so many steps, where batches of `wanted` steps per sub-env are asked."""
        if steps > max(LONG, 10 * wanted) and env not in self._warned:
            self._warned.add(env)
            warn(
                f"the episode of sub-env {env} has lasted {steps:,} steps, and none of them is handed out before it "
                "ends; limit episodes (gymnasium's TimeLimit), or set batch_mode='truncate_episodes'"
            )


def noted(raised: EnvRaised, seed: int | None, step: int | None) -> Exception:
    """What a sub-env raised, with a note of where: at a step of its episode, or at a reset."""
    where = "a reset" if step is None else f"step {step} of its episode, counted from 0"
    raised.cause.add_note(f"raised by sub-env {raised.env} (last seed {seed}) in {where}")
    return raised.cause
