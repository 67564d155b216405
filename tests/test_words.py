"""The rule for English: a docstring begins with a verb, and a name is a noun that users of the field say."""

import ast
import io
import re
import tokenize
import tomllib
from pathlib import Path

import pytest

import swath

SOURCE, TESTS = Path(swath.__file__).parent, Path(__file__).parent

RULE = tomllib.loads((TESTS / "words.toml").read_text())
LIMITS, NO_VERBS, NO_NOUNS = RULE["limits"], {*RULE["no_verbs"]}, {*RULE["no_nouns"]}
RIDDLES = re.compile(rf"\b({'|'.join(RULE['riddles'])})\b", re.IGNORECASE)
_TEXT = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def broken_in(text: str) -> list[str]:
    """Find the places of a file that break the rule, as `line: what stands there`."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [f"{t.start[0]}: {word}" for t in tokens if t.type in _TEXT for word in RIDDLES.findall(t.string)]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (doc := ast.get_docstring(node)):
            first = re.split(r"\W", doc.strip(), maxsplit=1)[0].lower()
            found += [f"{node.lineno}: docstring begins with {first}"] if first in NO_VERBS else []
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        name = node.id if stored else node.arg if isinstance(node, ast.arg) else ""
        found += [f"{node.lineno}: variable {name}"] if name in NO_NOUNS else []
    return found


def places() -> dict[str, list[str]]:
    """Find the places of each package of the library, and of the tests."""
    found: dict[str, list[str]] = {}
    for root, path in [(SOURCE, p) for p in SOURCE.rglob("*.py")] + [(TESTS, p) for p in TESTS.rglob("*.py")]:
        parts = path.relative_to(root).parts
        package = "tests" if root is TESTS else parts[0] if len(parts) > 1 else "root"
        found.setdefault(package, []).extend(f"{path}:{place}" for place in broken_in(path.read_text()))
    return found


PLACES = places()


def test_every_package_has_a_limit():
    assert LIMITS.keys() == PLACES.keys()


@pytest.mark.parametrize("package", LIMITS)
def test_no_package_breaks_the_rule_more_often_than_before(package):
    assert len(PLACES[package]) <= LIMITS[package], "\n".join(PLACES[package])


def test_a_break_of_the_rule_is_found():
    riddle, no_verb, no_noun = RULE["riddles"][0], RULE["no_verbs"][0], RULE["no_nouns"][0]
    text = f'def get({no_noun}):\n    """{no_verb} it is."""\n    # {riddle} knows\n    {no_noun} = 1\n'
    broken = [f"3: {riddle}", f"1: docstring begins with {no_verb}", f"1: variable {no_noun}", f"4: variable {no_noun}"]
    assert broken_in(text) == broken
