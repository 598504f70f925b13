"""What is printed: a console that suits a terminal and a pipe, and text that cannot command either."""

import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

MOST_COLUMNS = 140
_IN_A_PIPE = 100_000  # a line for each row, whatever its length
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def console() -> "Console":
    """Return a console on standard output."""
    from rich.console import Console

    made = Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())
    made.width = min(made.width, MOST_COLUMNS) if made.is_terminal else _IN_A_PIPE
    return made


def shown(text: str) -> str:
    """Return a text with what controls a terminal, or is half a character, written out: models say anything."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str, most: int = 200) -> str:
    """Return a text on one line, its end left out where it is too long."""
    line = " ".join(shown(text).split())
    return line if len(line) <= most else f"{line[:most]} ..."
