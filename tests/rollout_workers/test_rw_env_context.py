"""What an env creator is told."""

import copy
import pickle

import pytest

from swath import EnvContext

FACTS = {"worker_index": 3, "vector_index": 2, "remote": True, "num_workers": 5, "recreated_worker": True}


def facts_of(context):
    return {name: getattr(context, name) for name in FACTS}


def test_it_is_a_copy_of_the_config_with_attributes():
    config = {"a": 1}
    context = EnvContext(config, 0)
    context["b"] = 2
    assert (config, dict(context)) == ({"a": 1}, {"a": 1, "b": 2})
    assert [*facts_of(context).values()] == [0, 0, False, None, False]


COPIES = {
    "pickle": lambda context: pickle.loads(pickle.dumps(context)),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "dict.copy": EnvContext.copy,
    "copy_with_overrides": EnvContext.copy_with_overrides,
}
DEEP = {"pickle", "copy.deepcopy", "copy_with_overrides"}


@pytest.mark.parametrize("way", COPIES)
def test_content_and_attributes_survive_being_copied(way):
    context = EnvContext({"a": [1]}, **FACTS)
    made = COPIES[way](context)
    assert (type(made), dict(made), facts_of(made)) == (EnvContext, {"a": [1]}, FACTS)
    assert (made["a"] is context["a"]) == (way not in DEEP)


@pytest.mark.parametrize("name", FACTS)
def test_an_override_changes_what_it_names_also_to_something_falsy(name):
    value = type(FACTS[name])(0)
    made = EnvContext({"a": 1}, **FACTS).copy_with_overrides(**{name: value})
    assert (dict(made), facts_of(made)) == ({"a": 1}, {**FACTS, name: value})


def test_defaults_fill_what_is_missing_only():
    context = EnvContext({"a": 1, "b": None}, 0)
    context.set_defaults({"a": -1, "b": -1, "c": 3})
    assert context == {"a": 1, "b": None, "c": 3}


@pytest.mark.parametrize(("config", "content"), [({"a": 1}, "'a': 1, "), ({}, "")])
def test_its_text_is_the_content_and_where_it_is(config, content):
    assert str(EnvContext(config, **FACTS)) == f"{{{content}worker=3/5, vector_idx=2, remote=True}}"
