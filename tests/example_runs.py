"""Examples, which run in the process of their test, without new imports."""

import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(monkeypatch, name, *changes):
    """Return the module of an example, with texts replaced that occur in it once."""
    monkeypatch.syspath_prepend(EXAMPLES)
    text = (EXAMPLES / name).read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    module = ModuleType(Path(name).stem)
    exec(compile(text, EXAMPLES / name, "exec"), vars(module))
    return module


def lines_of(monkeypatch, module, folder, *words):
    """Return the output of an example that runs in a folder with command-line arguments."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [module.__name__, *words])
    with redirect_stdout(StringIO()) as out:
        module.main()
    return out.getvalue().splitlines()
