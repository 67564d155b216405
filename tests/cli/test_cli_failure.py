from pathlib import Path

import pytest

from swath.cli import failure
from swath.cli.failure import (
    BrokenOffError,
    UsageError,
    told_if_misfitting,
    told_if_missing,
    told_if_unserved,
    told_in_one_line,
    with_extra,
)
from swath.errors import FleetFailed

OURS = """
def raised(error):
    with {}:
        raise error
"""


def ours(context, error):
    """Raise it within, where no line of a user's is."""
    names = dict(vars(failure))
    exec(compile(OURS.format(context), failure.__file__, "exec"), names)
    names["raised"](error)


def broken_off(error):
    ours('told_if_broken_off("Env-v0", lambda: "that goes on")', error)


@pytest.mark.parametrize("error", [ValueError, OSError, ImportError])
def test_what_goes_wrong_while_preparing_becomes_one_line(error):
    with pytest.raises(UsageError) as caught:
        ours("told_in_one_line()", error("two\n  lines"))
    assert str(caught.value) == "two lines"


@pytest.mark.parametrize(("error", "told"), [(ValueError, ValueError), (OSError, OSError), (ImportError, UsageError)])
def test_what_a_line_of_the_users_raises_while_preparing_is_told_as_such_unless_a_package_is_missing(error, told):
    with pytest.raises(told, match="level 3"), told_in_one_line():
        raise error("level 3")


def test_the_refusal_of_spaces_is_told_apart_from_a_type_error_of_the_users():
    with pytest.raises(UsageError, match=r"^Env-v0: no space$"):
        ours('told_if_unserved("Env-v0")', TypeError("no space"))
    with pytest.raises(TypeError, match="level 3"), told_if_unserved("Env-v0"):
        raise TypeError("level 3")


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), told_in_one_line():
        1 / 0  # noqa: B018


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Namespace ALE not found.", 'Namespace ALE not found; pip install "swath[atari]" brings it'),
        ('ale_py is needed: pip install "swath[atari]"', 'needed: pip install "swath[atari]"'),
        ("MuJoCo is not installed, run `pip install mujoco`", 'swath[mujoco]" brings it'),
        ("pygame is not installed", 'swath[classic-control]" brings it'),
        ("Box2D is not installed.", "Box2D is not installed"),
    ],
)
def test_a_missing_package_is_told_with_the_extra_that_brings_it(text, told):
    assert with_extra(text).endswith(told)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("matplotlib is needed"), "no curve: matplotlib is needed"),
        (TypeError("Descriptors cannot\nbe created directly"), "no curve: Descriptors cannot be created directly"),
        (RuntimeError(), "no curve: RuntimeError"),
    ],
)
def test_what_an_extra_brings_is_left_out_after_one_line_where_it_is_missing_or_broken(error, said):
    told = []
    with told_if_missing(told.append, "curve"):
        raise error
    assert told == [said]


@pytest.mark.parametrize("error", [OSError, MemoryError, FloatingPointError, FleetFailed])
def test_what_ends_a_run_from_outside_is_one_line_with_the_way_to_go_on(error):
    with pytest.raises(BrokenOffError, match=r"^no room; that goes on$"):
        broken_off(error("no\n room"))


def test_an_error_without_words_is_called_by_its_name():
    with pytest.raises(BrokenOffError, match=r"^MemoryError; "):
        broken_off(MemoryError())


def test_what_an_env_raised_without_a_line_of_the_users_keeps_its_traceback_and_says_what_to_do():
    error = ConnectionError("simulator gone")
    error.add_note("raised by env 3")
    with pytest.raises(ConnectionError) as caught:
        broken_off(error)
    assert caught.value.__notes__ == ["raised by env 3", "`swath doctor Env-v0` looks at the env alone\nthat goes on"]


def test_a_bug_of_ours_keeps_its_traceback_and_gets_no_advice():
    with pytest.raises(ZeroDivisionError) as caught:
        broken_off(ZeroDivisionError())
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("error", [KeyError, TypeError, ValueError, RuntimeError])
def test_a_checkpoint_that_does_not_fit_is_named(error):
    with pytest.raises(UsageError, match=r"a\.safetensors does not fit Env-v0 as it is here: .*why"):
        ours('told_if_misfitting("a.safetensors", "Env-v0")', error("why"))
    with pytest.raises(UsageError, match=r"a\.safetensors does not fit this version of Swath: .*why"):
        ours('told_if_misfitting("a.safetensors")', error("why"))


def test_a_checkpoint_is_not_blamed_for_what_a_line_of_the_users_or_an_env_raised():
    with pytest.raises(ValueError, match="level 3"), told_if_misfitting(Path("a.safetensors"), "Env-v0"):
        raise ValueError("level 3")
    error = ValueError("level 4")
    error.add_note("raised by env 0")
    with pytest.raises(ValueError, match="level 4"):
        ours('told_if_misfitting("a.safetensors", "Env-v0")', error)
