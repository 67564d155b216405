"""What users hang in: methods that are called when something happens in a worker, a policy or a set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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

    on_env_runners_recreated = on_workers_recreated


RLlibCallback = DefaultCallbacks

EVENTS = tuple(name for name in vars(DefaultCallbacks) if name.startswith("on_"))
"""Names of the methods."""


def listener(callbacks: DefaultCallbacks, event: str) -> Listener | None:
    """Whom to call when this happens; None if nobody overrides the method, so that nothing need be done."""
    method: Listener = getattr(callbacks, event)
    return None if getattr(method, "__func__", None) is getattr(DefaultCallbacks, event) else method


def callbacks_of(config: Mapping[str, Any]) -> DefaultCallbacks:
    """One object for all that a config names, with instances of its own: classes in their order, then functions.

    Raises:
        TypeError: a class that is not derived from `DefaultCallbacks`.
    """
    parts = [_instance(kind) for kind in _listed(config["callbacks_class"])]
    functions = config["callback_functions"]
    if len(parts) == 1 and not functions:
        return parts[0]
    made = DefaultCallbacks()
    for event in EVENTS:
        methods = [method for part in parts if (method := listener(part, event)) is not None]
        if called := [*methods, *_listed(functions.get(event))]:
            setattr(made, event, partial(_call_all, called))
    return made


def _call_all(called: Sequence[Listener], **kwargs: Any) -> None:
    for each in called:
        each(**kwargs)


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
