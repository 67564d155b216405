"""A console for runs: it says when nobody reads it any more, where rich's own ends the process without a word."""

from __future__ import annotations

import errno
import sys
from contextlib import suppress

from rich.console import Console


class RunConsole(Console):
    """Rich's console; where a pipe is closed at its other end it raises, and is silent from then on."""

    def on_broken_pipe(self) -> None:
        """Say so.

        Raises:
            BrokenPipeError: always.
        """
        self.quiet = True
        if self.file is sys.stdout:
            with suppress(SystemExit):
                super().on_broken_pipe()  # leaves nothing in it that Python could not get rid of at its end
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output any more")
