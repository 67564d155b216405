"""What collectors with many workers have in common, wherever their workers live."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from swath.collect.background import Background
from swath.collectors.fleet_assembly import Assembled, assemble_fleet
from swath.collectors.fleet_controls import FleetControls
from swath.collectors.fleet_request import FleetRequest
from swath.collectors.fleet_weights import FleetWeights
from swath.collectors.weight_methods import TakesWeights
from swath.collectors.weight_settings import WeightSettings
from swath.report.progress import Progress

SHUTDOWN_S = 10.0
GOODBYE_S = 1.0


class ManyWorkers(TakesWeights, FleetControls):
    """Draws from a fleet. Faces say what is asked of it, and how it is saved and shut down."""

    def _begin(self, request: FleetRequest, settings: WeightSettings, view: Progress | None) -> None:
        """Bring the workers up, and show them; blocks until all have built env and policy.

        Raises:
            ValueError: automatic updates have nothing to publish.
        """
        settings.require_source(request.automatic)
        self._request = request
        self._assembled = assemble_fleet(request, _weakly(self))
        collection = self._collection = self._assembled.collection
        self._background = Background(collection, _nothing, _nothing)
        weakref.finalize(self, _say_goodbye, self._assembled, self._background)
        outlet = self._outlet = FleetWeights(self._assembled, settings.policy)
        try:
            self._begin_weights(settings)
            outlet.begin(built_there=settings.built_there)
        except BaseException:
            self._end(0.0)
            raise
        collection.desk.renewal.receive = self._receivers.take
        self._begin_progress(view)

    def _end(self, timeout: float) -> None:
        """Stop background mode and end the workers; what closing their envs raised is raised."""
        self._end_progress()
        try:
            with self._background.ending(timeout):
                self._assembled.collection.close(timeout)
        finally:
            self._end_weights()


def _weakly(collector: ManyWorkers) -> Callable[[], None]:
    """Publishes the policy's weights; does not keep the collector alive."""
    mine = weakref.ref(collector)

    def republish() -> None:
        held = mine()
        if held is not None:
            held.update_policy_weights_()

    return republish


def _nothing() -> None:
    """Workers act on snapshots in any case."""


def _say_goodbye(assembled: Assembled, background: Background) -> None:
    """End what was left when the collector is collected as garbage or the interpreter exits.

    Any thread may collect garbage, also one of Ray's, which must not wait for Ray.
    """
    if threading.current_thread() is threading.main_thread():
        _end(assembled, background)
    else:
        threading.Thread(target=_end, args=(assembled, background), daemon=True).start()


def _end(assembled: Assembled, background: Background) -> None:
    with suppress(Exception):
        assembled.collection.close(GOODBYE_S)
    background.stop(GOODBYE_S)
