"""What a collector is for a scheme: where its weights go out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from swath.weight_update.mail import Post
from swath.weights.snapshot import Snapshot

ATTRIBUTE = "_outlet"


class Reads(Protocol):
    """A scheme, as a collector sees it."""

    @property
    def sends(self) -> bool:
        """Whether updates of its model publish anything."""

    @property
    def is_read(self) -> bool:
        """Whether others read its own channel, so that it must be told what is published."""

    def source(self) -> Any:
        """The model or weights that are fetched where none are given; `None` if it has none."""

    def sent_to(self, worker: int) -> Snapshot | None:
        """What was sent to a worker before a collector came; `None` if nothing was."""

    def prepared(self, weights: Any) -> Any:
        """The weights as they are to be published."""

    def ended(self) -> None:
        """The collector was shut down."""

    def published(self, post: Post) -> None:
        """These were published."""


class Outlet(Protocol):
    """Publishes weights to the workers of one collector. Any thread may use it."""

    @property
    def workers(self) -> Sequence[int]:
        """Indices of the workers."""

    def require_open(self) -> None:
        """Raise `Closed` after shutdown."""

    def attach(self, model_id: str, scheme: Any) -> None:
        """A scheme serves this model from now on.

        Raises:
            RuntimeError: another one does.
        """

    def publish(self, given: Mapping[str, Any], worker_ids: Any = None) -> int:
        """Weights by model as one version, also `{worker: weights}`; those that are `None` are fetched."""

    def wait(self, worker_ids: Any, timeout_s: float | None) -> None:
        """Wait until these workers run the newest version.

        Raises:
            WorkerLate: they do not in time.
        """

    def newest(self, model_id: str) -> Post:
        """What was published last."""


def outlet_of(context: Any) -> Outlet | None:
    """That of a collector; `None` for anything else."""
    outlet: Outlet | None = getattr(context, ATTRIBUTE, None)
    return outlet
