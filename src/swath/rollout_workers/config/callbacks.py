"""Settings of callbacks: classes, and functions per event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack

from swath.rollout_workers.config.checks import optional, refuse
from swath.rollout_workers.config.holder import Holder
from swath.rollout_workers.config.settings import UNCHANGED, Setting

if TYPE_CHECKING:
    from swath.rollout_workers.config.other_names import OtherNames

Callback: TypeAlias = Callable[..., Any]
Callbacks: TypeAlias = Callback | Sequence[Callback] | None
"""One, or several that are called in order."""

WANTED_CLASS = "a class derived from DefaultCallbacks, or a list of such classes"


def _some(wanted: str) -> Callable[[str, object], Callback | list[Callback]]:
    def check(name: str, value: object) -> Callback | list[Callback]:
        if isinstance(value, list | tuple) and all(map(callable, value)):
            return list(value)
        if not callable(value):
            refuse(name, value, wanted)
        return value

    return check


def _function(event: str) -> Setting[Callback | list[Callback] | None]:
    return Setting(
        optional(_some("a function with keywords, or a list of such functions")), default=None, also=(event,)
    )


class CallbacksSettings(Holder):
    """What `callbacks` sets."""

    callbacks_class = Setting(optional(_some(WANTED_CLASS)), default=None, also=("callbacks",))
    callbacks_on_sub_environment_created = _function("on_sub_environment_created")
    callbacks_on_create_policy = _function("on_create_policy")
    callbacks_on_episode_created = _function("on_episode_created")
    callbacks_on_episode_start = _function("on_episode_start")
    callbacks_on_episode_step = _function("on_episode_step")
    callbacks_on_episode_end = _function("on_episode_end")
    callbacks_on_postprocess_trajectory = _function("on_postprocess_trajectory")
    callbacks_on_sample_end = _function("on_sample_end")
    callbacks_on_learn_on_batch = _function("on_learn_on_batch")
    callbacks_on_workers_recreated = _function("on_workers_recreated")
    callbacks_on_env_runners_recreated = _function("on_env_runners_recreated")

    def callbacks(
        self,
        callbacks_class: Callbacks = UNCHANGED,
        *,
        on_sub_environment_created: Callbacks = UNCHANGED,
        on_create_policy: Callbacks = UNCHANGED,
        on_episode_created: Callbacks = UNCHANGED,
        on_episode_start: Callbacks = UNCHANGED,
        on_episode_step: Callbacks = UNCHANGED,
        on_episode_end: Callbacks = UNCHANGED,
        on_postprocess_trajectory: Callbacks = UNCHANGED,
        on_sample_end: Callbacks = UNCHANGED,
        on_learn_on_batch: Callbacks = UNCHANGED,
        on_workers_recreated: Callbacks = UNCHANGED,
        on_env_runners_recreated: Callbacks = UNCHANGED,
        **others: Unpack[OtherNames],
    ) -> Self:
        """Say who is called when something happens; functions take the keywords of the method of their name.

        Args:
            callbacks_class: a class derived from `DefaultCallbacks`, or a list of them, called in order.
            on_sub_environment_created: a sub-env was made or rebuilt.
            on_create_policy: a policy was built.
            on_episode_created: before the reset.
            on_episode_start: after the reset.
            on_episode_step: after each step.
            on_episode_end: after the last step.
            on_postprocess_trajectory: a chunk is done; may change it.
            on_sample_end: a batch is complete; may change it.
            on_learn_on_batch: before an update.
            on_workers_recreated: replacements are ready.
            on_env_runners_recreated: the same event under its other name.
            **others: old names, and settings without effect.
        """
        return self._given(locals())

    @property
    def callback_functions(self) -> dict[str, Callback | list[Callback]]:
        """The functions that are set, by event (`"on_episode_end"`)."""
        values = {event: vars(self)[f"callbacks_{event}"] for event in _EVENTS}
        return {event: functions for event, functions in values.items() if functions is not None}


_EVENTS = tuple(name.removeprefix("callbacks_") for name in vars(CallbacksSettings) if name.startswith("callbacks_on_"))
