"""What an env creator is told."""

import copy
import pickle

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


def test_content_and_attributes_survive_being_copied_and_overrides_change_what_they_name():
    context = EnvContext({"a": [1]}, **FACTS)
    copies = [copy.deepcopy(context), context.copy_with_overrides(), pickle.loads(pickle.dumps(context))]
    for made in (copy.copy(context), context.copy(), *copies):
        assert (type(made), dict(made), facts_of(made)) == (EnvContext, {"a": [1]}, FACTS)
    assert not any(made["a"] is context["a"] for made in copies)
    for name, fact in FACTS.items():
        value = type(fact)(0)  # something falsy, too
        assert facts_of(context.copy_with_overrides(**{name: value})) == {**FACTS, name: value}
    assert context.copy_with_overrides(env_config={"b": 2}) == {"b": 2}
