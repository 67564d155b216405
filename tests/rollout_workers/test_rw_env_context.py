"""What an env creator is told."""

import copy
import pickle

import pytest

from swath import EnvContext

FACTS = {"worker_index": 3, "vector_index": 2, "remote": True, "num_workers": 5, "recreated_worker": True}


def facts_of(context):
    return {name: getattr(context, name) for name in FACTS}


def test_it_is_a_copy_of_the_config_with_attributes_and_says_them():
    config = {"a": 1}
    context = EnvContext(config, 0)
    context.set_defaults({"a": -1, "b": 2})
    assert (config, context, [*facts_of(context).values()]) == ({"a": 1}, {"a": 1, "b": 2}, [0, 0, False, None, False])
    assert str(EnvContext(config, **FACTS)) == "{'a': 1, worker=3/5, vector_idx=2, remote=True}"


DEEP = {
    (lambda context: pickle.loads(pickle.dumps(context))): True,
    copy.copy: False,
    copy.deepcopy: True,
    EnvContext.copy: False,
    EnvContext.copy_with_overrides: True,
}


@pytest.mark.parametrize(("way", "deep"), DEEP.items())
def test_content_and_attributes_survive_being_copied(way, deep):
    context = EnvContext({"a": [1]}, **FACTS)
    made = way(context)
    assert (type(made), dict(made), facts_of(made)) == (EnvContext, {"a": [1]}, FACTS)
    assert (made["a"] is context["a"]) is not deep


@pytest.mark.parametrize("name", FACTS)
def test_an_override_changes_what_it_names_also_to_something_falsy(name):
    value = type(FACTS[name])(0)
    made = EnvContext({"a": 1}, **FACTS).copy_with_overrides(**{name: value})
    assert (dict(made), facts_of(made)) == ({"a": 1}, {**FACTS, name: value})
