"""Callbacks: which events there are, and who is called in which order."""

import inspect

import pytest

from swath.errors import NoEffectWarning
from swath.rollout_workers import AlgorithmConfig, DefaultCallbacks, RLlibCallback
from swath.rollout_workers.callbacks import EVENTS, callbacks_of

EPISODE = ("episode", "worker", "base_env", "env", "policies", "env_index")
SET = ("worker_set", "worker_ids", "is_evaluation")
PARAMETERS = {
    "on_sub_environment_created": ("worker", "sub_environment", "env_context", "env_index"),
    "on_create_policy": ("policy_id", "policy"),
    "on_episode_created": EPISODE,
    "on_episode_start": EPISODE,
    "on_episode_step": EPISODE,
    "on_episode_end": EPISODE,
    "on_postprocess_trajectory": (
        "worker", "episode", "agent_id", "policy_id", "policies", "postprocessed_batch", "original_batches",
    ),
    "on_sample_end": ("worker", "samples"),
    "on_learn_on_batch": ("policy", "train_batch", "result"),
    "on_workers_recreated": SET,
    "on_env_runners_recreated": SET,
}  # fmt: skip

every_event = pytest.mark.parametrize("event", PARAMETERS)


def facts(event):
    return {name: f"the {name}" for name in PARAMETERS[event]}


def telling(name, log):
    """A class whose every method notes that it was called."""
    methods = {
        event: lambda self, event=event, **kwargs: log.append((name, event, kwargs)) for event in PARAMETERS
    }  # fmt: skip
    return type(name, (DefaultCallbacks,), methods)


def made(callbacks_class=None, **functions):
    return callbacks_of(AlgorithmConfig().callbacks(callbacks_class, **functions))


def test_these_are_the_events():
    assert set(EVENTS) == set(PARAMETERS)
    assert RLlibCallback is DefaultCallbacks


@every_event
def test_a_method_takes_keywords_only_does_nothing_and_tolerates_more(event):
    assert getattr(DefaultCallbacks(), event)(**facts(event)) is None
    parameters = inspect.signature(getattr(DefaultCallbacks(), event)).parameters.values()
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert set(named) == set(PARAMETERS[event])
    open_ended = event != "on_create_policy"
    assert len(named) + open_ended == len(parameters)
    if open_ended:
        getattr(DefaultCallbacks(), event)(**facts(event), env_runner=None, news=1)


def test_what_one_raises_is_raised_and_the_later_ones_are_not_called():
    def fail(**kwargs):
        raise KeyError("mine")

    log = []
    callbacks = made(on_sample_end=[fail, lambda **kwargs: log.append(kwargs)])
    with pytest.raises(KeyError, match="mine"):
        callbacks.on_sample_end(samples=1)
    assert log == []


@every_event
def test_a_config_names_classes_and_functions(event):
    log = []

    def function(**kwargs):
        log.append(("function", event, kwargs))

    config = AlgorithmConfig().callbacks([telling("A", log), telling("B", log)], **{event: function})
    getattr(callbacks_of(config), event)(**facts(event))
    assert log == [(name, event, facts(event)) for name in ("A", "B", "function")]


@pytest.mark.parametrize("several", [False, True])
def test_a_class_that_is_not_derived_is_refused(several):
    with pytest.raises(TypeError, match=r"dict.* derive the class from DefaultCallbacks"):
        made([DefaultCallbacks, dict] if several else dict)


def test_a_method_of_a_name_that_nothing_has_is_warned_of_once():
    class Misspelt(DefaultCallbacks):
        def on_epsiode_end(self, **kwargs): ...

    with pytest.warns(NoEffectWarning, match=r"Misspelt.on_epsiode_end has no effect here: .*on_episode_end"):
        made(Misspelt)
    made(Misspelt)
