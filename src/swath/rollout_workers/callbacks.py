"""What users hang in: methods that are called when something happens in a worker, a policy or a set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swath.errors import warn_of_no_effect

Listener = Callable[..., None]
"""Called with keywords."""


class DefaultCallbacks:
    """Does nothing; derive from it and override what you need.

    All is passed by keyword, and more may come: end your signatures with `**kwargs`. `worker` is the worker in which
    something happens, `env_runner` the same. What a method raises is raised by the call of the worker that led to it.
    """

    def on_sub_environment_created(
        self, *, worker: Any, sub_environment: Any, env_context: Any, env_index: int | None = None, **kwargs: Any
    ) -> None:
        """A sub-env was made, or made anew, and validated."""

    def on_create_policy(self, *, policy_id: str, policy: Any) -> None:
        """A policy was built here; not called for one that was handed over ready-made."""

    def on_episode_created(
        self, *, episode: Any, worker: Any, base_env: Any, env: Any, policies: Any, env_index: int, **kwargs: Any
    ) -> None:
        """An episode is about to begin: the sub-env is reset next."""

    def on_episode_start(
        self, *, episode: Any, worker: Any, base_env: Any, env: Any, policies: Any, env_index: int, **kwargs: Any
    ) -> None:
        """An episode began: the sub-env was reset."""

    def on_episode_step(
        self, *, episode: Any, worker: Any, base_env: Any, env: Any, policies: Any, env_index: int, **kwargs: Any
    ) -> None:
        """A step was made in an episode; called only if it is overridden, which costs the worker its fast path."""

    def on_episode_end(
        self, *, episode: Any, worker: Any, base_env: Any, env: Any, policies: Any, env_index: int, **kwargs: Any
    ) -> None:
        """An episode ended; `episode` is the exception, if the env raised."""

    def on_postprocess_trajectory(
        self,
        *,
        worker: Any,
        episode: Any,
        agent_id: Any,
        policy_id: str,
        policies: Any,
        postprocessed_batch: Any,
        original_batches: Any,
        **kwargs: Any,
    ) -> None:
        """A chunk of a trajectory was post-processed by its policy; `postprocessed_batch` may be changed.

        `original_batches` has (policy id, policy, batch) of all agents by their ids, its own too. Overridden, it costs
        the worker its fast path.
        """

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        """A batch is complete and about to be handed out; it may be changed."""

    def on_learn_on_batch(self, *, policy: Any, train_batch: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """A policy is about to learn from a batch, which may be changed; what is put into `result` is reported."""

    def on_workers_recreated(
        self, *, worker_set: Any, worker_ids: Sequence[int], is_evaluation: bool, **kwargs: Any
    ) -> None:
        """Replacements of lost workers are ready; called in the process of the set."""

    def on_env_runners_recreated(
        self, *, worker_set: Any, worker_ids: Sequence[int], is_evaluation: bool, **kwargs: Any
    ) -> None:
        """The same by its other name."""


RLlibCallback = DefaultCallbacks

EVENTS = tuple(name for name in vars(DefaultCallbacks) if name.startswith("on_"))
"""Names of the methods."""


class CombinedCallbacks(DefaultCallbacks):
    """Calls the methods of several callbacks in their order, then functions.

    Args:
        parts: the callbacks.
        functions: by event, called with the same keywords.
    """

    def __init__(self, parts: Sequence[DefaultCallbacks], functions: Mapping[str, Sequence[Listener]]) -> None:
        self.parts = tuple(parts)
        self.functions = {event: tuple(listening) for event, listening in functions.items()}


def listeners(callbacks: DefaultCallbacks, event: str) -> tuple[Listener, ...]:
    """Whom to call when this happens, in order; empty if nobody overrides the method, so that nothing need be done."""
    if isinstance(callbacks, CombinedCallbacks):
        methods = [listener for part in callbacks.parts for listener in listeners(part, event)]
        return (*methods, *callbacks.functions.get(event, ()))
    method: Listener = getattr(callbacks, event)
    return () if getattr(method, "__func__", None) is getattr(DefaultCallbacks, event) else (method,)


def callbacks_of(config: Mapping[str, Any]) -> DefaultCallbacks:
    """One object for all that a config names, with instances of its own: classes in their order, then functions.

    Raises:
        TypeError: a class that is not derived from `DefaultCallbacks`.
    """
    parts = [_instance(kind) for kind in _listed(config["callbacks_class"])]
    listening = {event: _listed(given) for event, given in config["callback_functions"].items()}
    if listening or len(parts) > 1:
        return CombinedCallbacks(parts, listening)
    return parts[0] if parts else DefaultCallbacks()


def _instance(kind: Callable[[], Any]) -> DefaultCallbacks:
    made = kind()
    if not isinstance(made, DefaultCallbacks):
        raise TypeError(f"callbacks_class={kind!r} made {made!r}; derive the class from DefaultCallbacks")
    for name in dir(made):
        if name.startswith("on_") and name not in EVENTS:
            warn_of_no_effect(f"{type(made).__name__}.{name}", f"nothing of that name happens; known: {EVENTS}")
    return made


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]


def _telling_all(event: str) -> Listener:
    def tell(self: CombinedCallbacks, **kwargs: Any) -> None:
        for listener in listeners(self, event):
            listener(**kwargs)

    tell.__doc__ = getattr(DefaultCallbacks, event).__doc__
    return tell


for _event in EVENTS:
    setattr(CombinedCallbacks, _event, _telling_all(_event))
