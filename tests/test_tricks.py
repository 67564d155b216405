"""The source has no tricks: no patches, and no private names of other packages."""

import ast
from pathlib import Path

import pytest

import swath

SOURCE = Path(swath.__file__).parent
PEERS = ("torch", "tensordict", "torchrl", "gymnasium", "ray", "pettingzoo", "numpy", "stable_baselines3")
MADE_BY_THE_CLASS = {
    "collectors/collector.py": "Collector(backend=…) returns another class, as TorchRL's does",
    "collectors/multi.py": "MultiCollector(sync=…) returns one of its subclasses, as TorchRL's does",
}
"""Files with a `__new__`, and why."""

FORBIDDEN_TEXT = ("TESTING_ONLY", "meta_path", "noqa: SLF001", "__signature__", "sys._getframe", "_current_frames")


def tricks(text: str) -> list[str]:
    """Return the source of each trick in a module."""
    found = [trick for trick in FORBIDDEN_TEXT if trick in text]
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                found += [ast.unparse(target) for target in targets if _patches(target)]
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target) if _patches(target):
                found.append(ast.unparse(target))
            case ast.Call(func=ast.Name("locals")) | ast.FunctionDef(name="__new__"):
                found.append("locals()" if isinstance(node, ast.Call) else "__new__")
            case ast.Call(func=ast.Name("getattr" | "setattr"), args=[of, ast.Constant(str(name)), *_]):
                is_own = ast.unparse(of) == "self" or not name.startswith("_") or name.endswith("__")
                found += [] if is_own else [ast.unparse(node)]
            case ast.Call(func=ast.Attribute(attr="update" | "pop" | "setdefault" | "clear", value=on)):
                found += [ast.unparse(node)] if ast.unparse(on) == "sys.modules" else []
            case ast.ImportFrom(module=str(module), level=0, names=names):
                found += [f"{module}.{alias.name}" for alias in names if _is_private(f"{module}.{alias.name}")]
            case ast.Import(names=names):
                found += [alias.name for alias in names if _is_private(alias.name)]
    return found


def _patches(target: ast.expr) -> bool:
    if isinstance(target, ast.Attribute):
        return target.attr == "__class__"
    return isinstance(target, ast.Subscript) and ast.unparse(target.value) in ("sys.modules", "modules")


def _is_private(path: str) -> bool:
    top, *inside = path.split(".")
    return top in PEERS and any(part.startswith("_") and not part.endswith("__") for part in inside)


@pytest.mark.parametrize("name", [path.relative_to(SOURCE).as_posix() for path in sorted(SOURCE.rglob("*.py"))])
def test_a_module_has_no_tricks(name):
    found = tricks((SOURCE / name).read_text())
    assert [trick for trick in found if not (trick == "__new__" and name in MADE_BY_THE_CLASS)] == []


@pytest.mark.parametrize(
    "trick",
    [
        "sys.modules['pandas'] = None",
        "self.__class__ = Other",
        "self._given(locals())",
        "sys.meta_path.insert(0, finder)",
        "key = torch.DispatchKey.TESTING_ONLY_GenericMode",
        "class Batch:\n    def __new__(cls):\n        return 1",
        "getattr(env, '_env')",
        "from torchrl.envs.libs._gym_utils import step",
        "env._step(td)  # noqa: SLF001",
    ],
)
def test_a_trick_is_found(trick):
    assert tricks(trick) != []


@pytest.mark.parametrize("plain", ["sys.modules.get('torchrl.envs')", "from torch import nn", "self.modules = 1"])
def test_what_is_no_trick_is_not(plain):
    assert tricks(plain) == []
