"""House rules that no linter checks."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import swath
from swath.rollout_workers.config.settings import SETTINGS

SOURCE = Path(swath.__file__).parent
FACES = ("collectors/", "evaluation/", "rollout_workers/", "cli/", "testing/", "weights/schemes", "weights/updaters")
"""Packages and modules for users, with the field's parameter lists."""

MODULES = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
FOR_USERS = {
    "rollout/hosts/torchrl.py _build_with_state",
    "collectors/remote.py cascade_execute",
    "nearest.py call",
    "nearest.py spelling",
    "rollout/policies/calling.py call",
    "rollout/policies/calling.py forward",
    "workers/ray/worker.py forward",
    "workers/registered.py _refuse",
}
"""Functions that users call with keywords: to build an env, to call a method of a worker by its path, to call a policy
through another function, or to find a misspelt keyword."""

BELOW_THE_FACES = {name: tree for name, tree in MODULES.items() if not name.startswith(FACES)}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def calls_of(tree: ast.Module, *methods: str) -> list[str]:
    """Return the source of the objects on which methods with certain names are called."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [
        ast.unparse(func.value) for func in calls if isinstance(func, ast.Attribute) and func.attr in methods
    ]  # fmt: skip


def count_of_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    args = function.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return len(named) - (bool(named) and named[0].arg in ("self", "cls"))


@pytest.mark.parametrize("name", [name for name in swath.__all__ if name != "__version__"])
def test_a_public_name_resolves_and_says_what_it_is_in_one_line(name):
    first, *rest = (inspect.getdoc(getattr(swath, name)) or "").split("\n")
    assert first.endswith((".", ":"))
    assert not rest or not rest[0], f"the first line of {name}'s docstring does not stand alone"


def test_hosts_are_stepped_by_the_loop_only():
    stepping = {name: calls_of(tree, "step") for name, tree in MODULES.items()}
    on_hosts = {name for name, on in stepping.items() if any("host" in receiver.lower() for receiver in on)}
    assert on_hosts == {
        "rollout/loop.py",
        "rollout/hosts/env_server.py",  # the loop steps the host of all its processes
        "rollout/hosts/parallel_zoo.py",  # the loop steps the host of all processes
        "rollout/hosts/parallel_plan.py",  # the loop steps the plan, whose envs are in processes
        "rollout_workers/sampling/agents.py",  # the loop steps the agents in the place of their host
    }


def test_envs_are_stepped_by_hosts_and_by_envs_made_of_others_only():
    hosts = ("rollout/hosts/", "rollout_workers/vector_env.py", "testing/")
    envs_of_envs = ("rollout_workers/multi_agent_env.py", "rollout_workers/sampling/agents.py")
    verbs = ("step", "step_async", "step_wait", "vector_step")
    no_envs = ("optimizer", "adam", "grads", "timer", "tally")
    elsewhere = {
        (name, receiver)
        for name, tree in MODULES.items()
        if not name.startswith(hosts) and name not in ("rollout/loop.py", *envs_of_envs)
        for receiver in calls_of(tree, *verbs)
        if not receiver.endswith(no_envs)
    }
    assert elsewhere == set()


def test_below_the_faces_no_function_takes_more_than_seven_parameters():
    wide = {
        f"{name}:{function.lineno} {function.name}": count
        for name, tree in BELOW_THE_FACES.items()
        for function in functions(tree)
        if (count := count_of_parameters(function)) > 7
    }
    assert wide == {}


def test_below_the_faces_no_function_passes_unnamed_keywords_on():
    open_ended = {
        f"{name} {function.name}"
        for name, tree in BELOW_THE_FACES.items()
        for function in functions(tree)
        if function.args.kwarg
    }
    assert open_ended <= FOR_USERS


def test_no_file_is_over_600_lines():
    assert [name for name in MODULES if (SOURCE / name).read_text().count("\n") > 600] == []


def test_nothing_sleeps():
    names = {
        name: [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for name, tree in MODULES.items()
    }
    assert [name for name, calls in names.items() if any(call.split(".")[-1] == "sleep" for call in calls)] == []


def test_every_setting_of_rollout_workers_is_read_somewhere():
    read = {node.attr for tree in MODULES.values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words = {node.value for tree in MODULES.values() for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    built = {f"extra_python_environs_for_{whom}" for whom in ("driver", "worker")}  # the name is put together
    one_value = {"shuffle_batch_per_epoch", "framework_str"}  # nothing else is taken
    assert not {*SETTINGS} - read - words - built - one_value
