"""What a worker on Ray imports, in an interpreter of its own."""

import subprocess
import sys
from pathlib import Path

import tensordict  # noqa: F401

import swath
from swath.workers.ray.lean import import_tensordict

COMPILING = """
import sys
from swath.workers.ray.lean import COMPILER, import_tensordict
import_tensordict()
import swath.collect.remote, torch
from tensordict import TensorDict
print(COMPILER in sys.modules)
doubled = torch.compile(lambda td: td.lock_() * 2, backend="eager", fullgraph=True)
print(doubled(TensorDict({"a": torch.ones(2)}, [2]))["a"].tolist())
print(COMPILER in sys.modules, any("Marks" in repr(finder) for finder in sys.meta_path))
"""


def test_the_compiler_is_imported_when_it_is_wanted_and_finds_its_marks():
    """Without tensordict's marks the compiler does not take `lock_`."""
    root = str(Path(swath.__file__).parents[1])
    command, surroundings = [sys.executable, "-c", COMPILING], {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=100, check=True)
    assert child.stdout.splitlines() == ["False", "[2.0, 2.0]", "True False"]


def test_where_tensordict_has_been_imported_nothing_happens():
    assert "tensordict" in sys.modules
    before = list(sys.meta_path)
    import_tensordict()
    assert sys.meta_path == before
