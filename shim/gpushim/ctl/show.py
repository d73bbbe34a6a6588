"""What the commands print for people, by rich; whatever an image wrote is shown and never obeyed."""

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpushim.log import printable


def console() -> Console:
    """Standard output."""
    return Console(highlight=False)


def text(value: str, style: str = "") -> Text:
    """*value* as it is: no markup, no control characters."""
    return Text(printable(value), style=style)


def line(label: str, *parts: "str | Text", style: str = "bold") -> Text:
    """A labelled line, its parts in one column below each other over several lines."""
    out = Text(f"{label:9}", style=style)
    for part in parts:
        out.append_text(part if isinstance(part, Text) else text(part, "default not bold"))
    return out


def table(
    columns: tuple[str, ...], rows: "Sequence[tuple[str, ...]]", dim: "set[int] | None" = None
) -> Table:
    """A table; *dim* are the rows of lesser interest."""
    out = Table(box=SIMPLE, padding=(0, 1), header_style="bold")
    for column in columns:
        out.add_column(column, overflow="fold")
    for number, row in enumerate(rows):
        out.add_row(*[text(cell) for cell in row], style="dim" if dim and number in dim else "")
    return out
