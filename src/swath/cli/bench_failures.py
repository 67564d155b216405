"""Why settings of `swath bench` failed: what several have in common is told once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from swath.bench.rounds import in_one_line
from swath.cli.mistake import is_mistake, look_alone, said_of, told
from swath.cli.places import setting_words

if TYPE_CHECKING:
    from swath.bench import Setting

_COUNTED = re.compile(r"(?<![:\w])\d+")
"""Numbers of workers, envs and seeds, not those of lines."""


class Failures:
    """Gathers what settings raised.

    Args:
        env: as it is named.
    """

    def __init__(self, env: str) -> None:
        self._env = env
        self._of_env = False
        self._alike: dict[str, tuple[str, list[Setting]]] = {}

    def note(self, setting: Setting, error: Exception) -> None:
        """A setting has failed."""
        text = told(error, self._env) if is_mistake(error, self._env) else in_one_line(error)
        self._alike.setdefault(_COUNTED.sub("#", text), (text, []))[1].append(setting)
        self._of_env = self._of_env or bool(said_of(error))

    def lines(self, settings: int) -> list[str]:
        """Each failure with its settings, by the user's lines where these raised it.

        Args:
            settings: how many there are in all.
        """
        lines = [f"failed: {_named(alike, settings)}: {text}" for text, alike in self._alike.values()]
        return [*lines, look_alone(self._env)] if self._of_env else lines


def _named(alike: list[Setting], settings: int) -> str:
    return f"all {settings} settings" if len(alike) == settings > 1 else "; ".join(map(setting_words, alike))
