"""A replay buffer in an actor of a Ray cluster, filled and sampled from everywhere.

    RayReplayBuffer ─┬─▶ actor: replay_buffer_cls(*args, **kwargs) ◀─── client() ─── worker 0
    extend, sample … ┘                                             ◀─── client() ─── worker 1 …

Each call is one blocking round trip; data travel as numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from swath.collectors.buffer_client import LIFECYCLE, RayReplayBufferClient
from swath.extras import need
from swath.options import seconds
from swath.workers.ray.residence import Residence, Tenancy

SHUTDOWN_S = 10.0


class RayReplayBuffer(RayReplayBufferClient):
    """A replay buffer in an actor of a Ray cluster, filled by many workers without passing through this process.

    Every public method of the buffer that is held, `len`, indexing and iteration is one blocking round trip of at most
    60 s. A collector whose `replay_buffer` it is gives each worker a client of its own. The actor ends with `close`,
    `shutdown`, or when this object is collected as garbage, and the data with it: it is never replaced by an empty one.

    Args:
        *args: of the class that is held.
        replay_buffer_cls: any class with `extend` and `sample`; TorchRL's `ReplayBuffer` by default.
        ray_init_config: keywords of `ray.init()`, used if Ray is not up in this process.
        remote_config: options of `ray.remote()`; one CPU by default.
        transport: `"auto"` or `"ray"`, which is the same.
        transport_options: none; there is nothing to be set.
        delayed_init: return at once, and build the buffer in its actor when it is used first.
        **kwargs: of the class that is held. TorchRL's `storage`, `sampler`, `writer` and `transform_factory` are to be
            constructors, so that they are called in the actor.

    Raises:
        ImportError: Ray is not installed, or TorchRL, and no `replay_buffer_cls` is given.
        TypeError: an argument cannot be pickled, or the class is not callable.
        ValueError: another transport, or options that would take the actor's life out of our hands.
        PlacementFailed: the cluster has no room.
        Exception: what building the buffer raised, as its own type.
    """

    def __init__(
        self,
        *args: Any,
        replay_buffer_cls: Callable[..., Any] | None = None,
        ray_init_config: Mapping[str, Any] | None = None,
        remote_config: Mapping[str, Any] | None = None,
        transport: str = "auto",
        transport_options: Mapping[str, Any] | None = None,
        delayed_init: bool = False,
        **kwargs: Any,
    ) -> None:
        _require_rays_transport(transport, transport_options)
        held = _default_class() if replay_buffer_cls is None else replay_buffer_cls
        if not callable(held):
            raise TypeError(f"replay_buffer_cls={held!r} must be a class with extend() and sample()")
        resources = {"num_cpus": 1} if remote_config is None else dict(remote_config)
        self._name = getattr(held, "__name__", type(held).__name__)
        build = partial(held, *args, **kwargs)
        what = f"the replay buffer ({self._name} on Ray)"
        self._residence = Residence(Tenancy(build, what, resources, ray_init_config, delayed_init))
        super().__init__(self._residence.reach, _methods_of(held), on_cpu=not resources.get("num_gpus"))

    @property
    def is_alive(self) -> bool:
        """Whether the actor lives, as far as is known; asks nobody."""
        return self._residence.alive

    def start(self) -> RayReplayBuffer:
        """Return the buffer, which is up already.

        Raises:
            Closed: after `close`.
        """
        self._residence.require_open()
        return self

    def close(self) -> None:
        """End the actor, and with it what it holds. Twice is fine."""
        self.shutdown()

    def shutdown(self, timeout: float | None = None) -> None:
        """End the actor, and with it what it holds. Twice is fine.

        Args:
            timeout: seconds to wait until it is over; `None` for 10.

        Raises:
            ValueError: no finite number of seconds.
        """
        self._residence.close(SHUTDOWN_S if timeout is None else seconds("timeout", timeout))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RayReplayBuffer ends its actor and stays in its process; send what client() returns")

    def __repr__(self) -> str:
        """A status line; asks nobody."""
        return f"<RayReplayBuffer {self._name}: {'up' if self.is_alive else 'gone'}>"

    def _require_open(self) -> None:
        self._residence.require_open()


def _require_rays_transport(transport: str, options: Mapping[str, Any] | None) -> None:
    """Raise `ValueError` for what cannot be done."""
    if transport not in ("auto", "ray"):
        raise ValueError(f"transport={transport!r} must be 'auto' or 'ray': data travel by Ray's own store")
    if options:
        raise ValueError(f"transport_options={options!r}: there is nothing to be set; leave it out")


def _default_class() -> Any:
    why = "for a RayReplayBuffer without replay_buffer_cls; pass that, or"
    return need("torchrl.data", extra="torchrl", why=why).ReplayBuffer


def _methods_of(held: Any) -> frozenset[str]:
    """Names of the public methods of a class, as far as they can be seen without an instance."""
    if not isinstance(held, type):
        return frozenset()
    public = (name for name in dir(held) if not name.startswith("_") and name not in LIFECYCLE)
    return frozenset(name for name in public if callable(getattr(held, name, None)))
