"""The pages of the documentation, and the blocks of code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def all_blocks(page):
    """Yield language, code and the number of the line above it."""
    text = page.read_text()
    return [(found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in BLOCK.finditer(text)]


def blocks(page):
    """Yield Python code and the number of the line above it."""
    return [(code, line) for language, code, line in all_blocks(page) if language == "python"]


FILE = re.compile(r"^A file `(\w+\.py)`[^\n]*\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files(page):
    """Return the Python files in a page by their names."""
    return dict(FILE.findall(page.read_text()))


def uses_ray(page):
    return any(re.search(r"import .*\bRay[A-Z]", code) for code, _ in blocks(page))


def uses_torchrl(page):
    return any("torchrl" in code for code, _ in blocks(page))
