"""How workers are brought up for whoever waits for them: all, or an exception that says why not."""

from __future__ import annotations

from collections.abc import Sequence

from swath.errors import FleetFailed, PlacementFailed, SwathError, WorkerLate, warn
from swath.options import Survival
from swath.workers.base import Backend, Handle
from swath.workers.lives import Lives
from swath.workers.watch import Watch


class Placing:
    """Brings workers up.

    Args:
        backend: where.
        lives: the workers that are replaced when they die.
        watch: over them.
        survival: how long to wait, and how many are needed.
    """

    def __init__(self, backend: Backend, lives: Lives, watch: Watch, survival: Survival) -> None:
        self._backend = backend
        self._lives = lives
        self._watch = watch
        self._survival = survival

    def first(self) -> tuple[int, ...]:
        """Begin all lives and wait until they are up; who is missing when enough of them are."""
        until = self._watch.until(self._survival.placement_timeout_s)
        self._lives.placing = True
        while True:
            known = self._watch.look()
            self._raise_refusal()
            missing = self._missing()
            due = min((self._due(worker, until) for worker in missing), default=until)
            if not missing or self._watch.passed(due):
                break
            self._watch.pause((), known, due)
        if missing:
            self._go_on_without(missing)
        self._lives.placing = False
        return missing

    def more(self, handles: Sequence[Handle]) -> None:
        """Wait until these are ready, which are not replaced when they die."""
        until = self._watch.until(self._survival.placement_timeout_s)

        def missing() -> list[Handle]:
            return [handle for handle in handles if not _is_ready(handle)]

        if not self._watch.reached(lambda: not missing(), [handle.ready for handle in handles], until):
            raise self._not_placed(missing(), len(handles))

    def failure(self) -> FleetFailed | None:
        """What ends the run, if too few are left."""
        causes, state = self._lives.causes, self._lives.state
        if causes is None:
            return None
        needed = "all" if self._survival.min_workers is None else f"min_workers={state.required}"
        why = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
        return FleetFailed(
            f"{state.left} of {len(state.workers)} workers are left, and {needed} are needed; the others ended: {why}",
            causes=causes,
        )

    def _missing(self) -> tuple[int, ...]:
        workers = self._lives.state.workers
        return tuple(worker for worker, standing in workers.items() if standing.phase in ("waiting", "starting"))

    def _due(self, worker: int, until: float) -> float:
        """When it is to be ready: counted from when it was placed, if that counts, else with all the others."""
        handle, patience = self._lives.handles.get(worker), self._survival.start_timeout_s
        since = None if handle is None else handle.placed.settled
        return until if since is None or patience is None else since + patience

    def _raise_refusal(self) -> None:
        if self._lives.refused is not None:
            raise self._lives.refused
        if (failure := self.failure()) is not None:
            raise failure

    def _go_on_without(self, missing: tuple[int, ...]) -> None:
        handles, state = self._lives.handles, self._lives.state
        failure = self._not_up([handles[worker] for worker in missing], len(state.workers))
        if len(self._lives.up) < state.required:
            raise failure
        warn(f"{failure}; the others begin without them")

    def _not_up(self, missing: Sequence[Handle], n: int) -> SwathError:
        patience = self._survival.start_timeout_s
        if patience is None or not all(handle.placed.done for handle in missing):
            return self._not_placed([handle for handle in missing if patience is None or not handle.placed.done], n)
        workers = tuple(handle.name.worker for handle in missing)
        return WorkerLate(
            f"{len(missing)} of {n} workers ({', '.join(map(str, workers))}) were not ready "
            f"{self._survival.said('start_timeout_s')} after they were placed, and were ended",
            workers=workers,
            deadline=patience,
        )

    def _not_placed(self, missing: Sequence[Handle], n: int) -> PlacementFailed:
        asked, available = self._backend.room(missing[0])
        workers = ", ".join(str(handle.name.worker) for handle in missing)
        return PlacementFailed(
            f"{len(missing)} of {n} workers ({workers}) were not ready after "
            f"{self._survival.said('placement_timeout_s')}: each asks for {asked}; there is {available}; use fewer "
            "workers, or make room",
            asked=asked,
            available=available,
        )


def _is_ready(handle: Handle) -> bool:
    """Whether it can be called.

    Raises:
        BaseException: what building it raised.
    """
    if not handle.ready.done:
        return False
    handle.ready.value  # noqa: B018  it raises
    return True
