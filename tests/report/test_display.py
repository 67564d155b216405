import io

import pytest
from display_toys import terminal
from rich.console import Console

from swath.report.display import Title, create_display
from swath.report.line_display import LineDisplay
from swath.report.picture_display import PictureDisplay


def test_a_terminal_gets_a_picture():
    display = create_display(terminal(_environ={"TERM": "xterm"}), Title("x"))
    assert isinstance(display, PictureDisplay)
    display.close()


@pytest.mark.parametrize(
    "console",
    [
        Console(file=io.StringIO()),
        terminal(_environ={"TERM": "dumb"}),
        Console(file=io.TextIOWrapper(io.BytesIO(), encoding="latin-1"), force_terminal=True),
    ],
    ids=["pipe", "dumb", "ascii"],
)
def test_where_no_picture_can_be_drawn_there_are_lines(console):
    assert isinstance(create_display(console, Title("x")), LineDisplay)
