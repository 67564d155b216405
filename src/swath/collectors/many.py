"""What collectors with many workers have in common, wherever their workers live."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from swath.collect.background import Background
from swath.collect.deliver import Drawn
from swath.collectors.base import BaseCollector
from swath.collectors.fleet_assembly import Assembled, assemble_fleet
from swath.collectors.fleet_controls import FleetControls
from swath.collectors.fleet_facts import FleetFacts
from swath.collectors.fleet_request import FleetRequest
from swath.collectors.fleet_weights import FleetTakesWeights, Publisher

SHUTDOWN_S = 10.0
GOODBYE_S = 1.0


class ManyWorkers(FleetTakesWeights, FleetControls, FleetFacts, BaseCollector):
    """Draws from a fleet. Faces say what is asked of it, and how it is saved and shut down."""

    def _begin(self, request: FleetRequest, policy: Any) -> None:
        """Bring the workers up; blocks until all have built env and policy."""
        self._request = request
        self._assembled = assemble_fleet(request, _weakly(self))
        self._publisher = Publisher(self._assembled, policy)
        self._background = Background(self._assembled.collection, _nothing, _nothing)
        weakref.finalize(self, _say_goodbye, self._assembled, self._background)

    def _draw(self) -> Drawn:
        if self._background.running:
            raise RuntimeError(
                f"this {self._request.name} is collecting in the background; pause it or read the replay buffer"
            )
        self._background.raise_kept()
        return self._assembled.collection.draw()

    def _end(self, timeout: float) -> None:
        """Stop background mode and end the workers; what closing their envs raised is raised."""
        try:
            self._assembled.collection.close(timeout)
        finally:
            self._background.stop(timeout)


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
    """End what was left when the collector is collected as garbage or the interpreter exits."""
    with suppress(Exception):
        assembled.collection.close(GOODBYE_S)
    background.stop(GOODBYE_S)
