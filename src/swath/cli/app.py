"""The command line: parses arguments, runs a command and returns its exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from swath._version import __version__
from swath.cli.bench import bench
from swath.cli.collect import collect
from swath.cli.doctor import doctor
from swath.cli.evaluate import evaluate
from swath.cli.failure import INTERRUPTED, USAGE, RunError
from swath.cli.train import train

HELP = """Train reinforcement learning policies, evaluate them, and collect experience.

Begin with `swath train CartPole-v1`.

An env is a Gymnasium id, or a class or function of yours in an installed module or one of the current folder.
"""

app = App(name="swath", help=HELP, help_format="markdown", version=__version__)
app.command(train, usage="Usage: swath train ENV [OPTIONS]", sort_key=1)
app.command(evaluate, name="eval", usage="Usage: swath eval CHECKPOINT [OTHER] [OPTIONS]", sort_key=2)
app.command(collect, usage="Usage: swath collect ENV --out PATH [OPTIONS]", sort_key=3)
app.command(doctor, usage="Usage: swath doctor ENV [OPTIONS]", sort_key=4)
app.command(bench, usage="Usage: swath bench ENV [OPTIONS]", sort_key=5)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code.

    A wrong argument is one line on stderr and code 2. An error that ends a run is one line and code 1, above the
    traceback if an env or a policy raised; Ctrl-C is one line and code 130.
    """
    try:
        command, bound_arguments, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False)
        code: int | None = command(*bound_arguments.args, **bound_arguments.kwargs)
    except CycloptsError as error:
        help_command = " ".join(("swath", *(error.command_chain or ()), "--help"))
        return _print_error(f"{' '.join(str(error).split())}; {help_command} lists the options", USAGE)
    except RunError as error:
        return _print_error(str(error), error.code)
    except KeyboardInterrupt:
        return _print_error("interrupted", INTERRUPTED)
    return code or 0


def _print_error(text: str, code: int) -> int:
    print("swath:", text, file=sys.stderr)
    return code
