"""The command line: from its words to a command's exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cyclopts import App, CycloptsError

from swath._version import __version__
from swath.cli.commands.bench import bench
from swath.cli.commands.collect import collect
from swath.cli.commands.doctor import doctor
from swath.cli.commands.evaluate import evaluate
from swath.cli.commands.train import train
from swath.cli.failure import FAILED, USAGE, BrokenOffError, UsageError
from swath.cli.paragraphs import with_paragraphs
from swath.cli.stop import exit_code_of, terminable

if TYPE_CHECKING:
    from collections.abc import Sequence

HELP = """Train reinforcement learning policies, evaluate them, and collect experience.

swath train CartPole-v1                     trains PPO; results under runs/
swath eval runs/CartPole-v1-seed0           repeats its final evaluation
swath eval runs/A runs/B                    says which of two policies is better
swath collect CartPole-v1 --out data/poles  writes experience to disk
swath doctor my_module:MyEnv                says what is wrong with an env
swath bench CartPole-v1                     finds the fastest number of workers

An env is a Gymnasium id, or a class or function of yours in an installed module or one of the current folder.
"""

app = App(name="swath", help=HELP, help_format="plaintext", version=__version__)
app.command(with_paragraphs(train), usage="Usage: swath train ENV [OPTIONS]", sort_key=1)
app.command(with_paragraphs(evaluate), name="eval", usage="Usage: swath eval CHECKPOINT [OTHER] [OPTIONS]", sort_key=2)
app.command(with_paragraphs(collect), usage="Usage: swath collect ENV --out PATH [OPTIONS]", sort_key=3)
app.command(with_paragraphs(doctor), usage="Usage: swath doctor ENV [OPTIONS]", sort_key=4)
app.command(with_paragraphs(bench), usage="Usage: swath bench ENV [OPTIONS]", sort_key=5)


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line and return its exit code; errors of the user are one line on stderr and code 2.

    What ends a run from outside, such as a full disk, is one line and code 1; Ctrl-C and SIGTERM, where the command has
    no more to say of them, one line and code 130 or 143; what an env of the user's raises is told by the user's lines.
    """
    try:
        command, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False)
        with terminable():
            answer: Any = command(*bound.args, **bound.kwargs)
    except CycloptsError as error:
        return _complain(" ".join(str(error).split()), _where_to_look(error))
    except UsageError as error:
        return _complain(str(error))
    except BrokenOffError as error:
        _complain(str(error))
        return FAILED
    except KeyboardInterrupt as end:
        _complain("interrupted")
        return exit_code_of(end)
    return answer or 0


def _where_to_look(error: CycloptsError) -> str:
    return f"{' '.join(('swath', *(error.command_chain or ()), '--help'))} shows what there is"


def _complain(*parts: str) -> int:
    print("swath:", "; ".join(part.rstrip(".") for part in parts), file=sys.stderr)
    return USAGE
