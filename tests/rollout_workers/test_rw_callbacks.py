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


@pytest.mark.parametrize("event", PARAMETERS)
def test_an_event_takes_keywords_only_and_tolerates_more(event):
    assert (set(EVENTS), RLlibCallback) == (set(PARAMETERS), DefaultCallbacks)
    facts = {name: f"the {name}" for name in PARAMETERS[event]}
    method = getattr(DefaultCallbacks(), event)
    assert method(**facts) is None
    parameters = inspect.signature(method).parameters.values()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == set(PARAMETERS[event])
    if event != "on_create_policy":
        method(**facts, env_runner=None, news=1)


@pytest.mark.parametrize("event", PARAMETERS)
def test_classes_and_functions_of_a_config_are_called_in_order_until_one_raises(event):
    log = []
    noting = [
        type(name, (DefaultCallbacks,), {event: lambda self, name=name, **kwargs: log.append(name)}) for name in "AB"
    ]

    def fail(**kwargs):
        raise KeyError("mine")

    functions = [lambda **kwargs: log.append(kwargs), fail, lambda **kwargs: log.append("not reached")]
    config = AlgorithmConfig().callbacks(noting, **{event: functions})
    with pytest.raises(KeyError, match="mine"):
        getattr(callbacks_of(config), event)(episode=1)
    assert log == ["A", "B", {"episode": 1}]


def test_a_class_that_is_not_derived_is_refused_and_a_misspelt_method_warned_of():
    class Misspelt(DefaultCallbacks):
        def on_epsiode_end(self, **kwargs): ...

    with pytest.raises(TypeError, match=r"dict.* derive the class from DefaultCallbacks"):
        callbacks_of(AlgorithmConfig().callbacks([DefaultCallbacks, dict]))
    with pytest.warns(NoEffectWarning, match=r"Misspelt.on_epsiode_end has no effect here: .*on_episode_end"):
        callbacks_of(AlgorithmConfig().callbacks(Misspelt))
