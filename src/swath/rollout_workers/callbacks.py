"""Callbacks: methods of the user that are called at events in a worker, a policy or a set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from swath.errors import warn_of_no_effect

Listener = Callable[..., None]
"""Called with keywords."""


class DefaultCallbacks:
    """Callbacks that do nothing; derive from it and override what you need.

    All is passed by keyword, and more may come: end your signatures with `**kwargs`. `worker` and `env_runner` are the
    worker of the event. What a method raises is raised by the call of the worker that led to it.
    """

    def on_sub_environment_created(
        self, *, worker: Any, sub_environment: Any, env_context: Any, env_index: int | None = None, **kwargs: Any
    ) -> None:
        """Handle a sub-env that was made or rebuilt, and validated."""

    def on_create_policy(self, *, policy_id: str, policy: Any) -> None:
        """Handle a policy that was built here; not called for a policy object that was added."""

    def on_episode_created(
        self, *, episode: Any, worker: Any, base_env: Any, env: Any, policies: Any, env_index: int, **kwargs: Any
    ) -> None:
        """Prepare an episode that is about to begin: the sub-env is reset next."""

    def on_episode_start(
        self, *, episode: Any, worker: Any, base_env: Any, env: Any, policies: Any, env_index: int, **kwargs: Any
    ) -> None:
        """Handle the start of an episode: the sub-env was reset."""

    def on_episode_step(
        self, *, episode: Any, worker: Any, base_env: Any, env: Any, policies: Any, env_index: int, **kwargs: Any
    ) -> None:
        """Handle a step of an episode; called only if it is overridden, which costs the worker its fast path."""

    def on_episode_end(
        self, *, episode: Any, worker: Any, base_env: Any, env: Any, policies: Any, env_index: int, **kwargs: Any
    ) -> None:
        """Handle the end of an episode; `episode` is the exception, if the env raised."""

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
        """Change `postprocessed_batch`, a chunk of a trajectory that its policy has post-processed.

        `original_batches` has (policy id, policy, batch) of all agents by their ids, this agent's too. Overridden, it
        costs the worker its fast path.
        """

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        """Change a batch that is complete, before it is handed out."""

    def on_learn_on_batch(self, *, policy: Any, train_batch: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """Change a batch before a policy learns from it; entries of `result` are reported."""

    def on_workers_recreated(
        self, *, worker_set: Any, worker_ids: Sequence[int], is_evaluation: bool, **kwargs: Any
    ) -> None:
        """Handle replacements of lost workers that are ready; called in the process of the set."""

    on_env_runners_recreated = on_workers_recreated


RLlibCallback = DefaultCallbacks

EVENTS = tuple(name for name in vars(DefaultCallbacks) if name.startswith("on_"))
"""Names of the methods."""


def listener(callbacks: DefaultCallbacks, event: str) -> Listener | None:
    """Return the method to call for an event; None if it is not overridden."""
    method: Listener = getattr(callbacks, event)
    return None if getattr(method, "__func__", None) is getattr(DefaultCallbacks, event) else method


def callbacks_of(config: Mapping[str, Any]) -> DefaultCallbacks:
    """Return one object for all callbacks of a config: instances of its classes in order, then functions.

    Raises:
        TypeError: a class that is not derived from `DefaultCallbacks`.
    """
    parts = [_instance(kind) for kind in _as_list(config["callbacks_class"])]
    functions = config["callback_functions"]
    if len(parts) == 1 and not functions:
        return parts[0]
    callbacks = DefaultCallbacks()
    for event in EVENTS:
        methods = [method for part in parts if (method := listener(part, event)) is not None]
        if listeners := [*methods, *_as_list(functions.get(event))]:
            setattr(callbacks, event, partial(_call_all, listeners))
    return callbacks


def _call_all(listeners: Sequence[Listener], **kwargs: Any) -> None:
    for function in listeners:
        function(**kwargs)


def _instance(kind: Callable[[], Any]) -> DefaultCallbacks:
    callbacks = kind()
    if not isinstance(callbacks, DefaultCallbacks):
        raise TypeError(f"callbacks_class={kind!r} made {callbacks!r}; derive the class from DefaultCallbacks")
    for name in dir(callbacks):
        if name.startswith("on_") and name not in EVENTS:
            warn_of_no_effect(f"{type(callbacks).__name__}.{name}", f"it is no event; known: {EVENTS}")
    return callbacks


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
