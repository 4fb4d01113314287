"""Fits tables to the window: chooses columns and their widths."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from serving.terminal.output import shown_lines

Cell = str | Text

_GAP, _EDGES = 3, 2
"""Characters between two columns, and at both ends of a line, as the box style draws them."""
_WORD = 12
"""A text column is not made narrower than its longest word, up to this many characters."""
_NAME = 24
"""The first column identifies the row, so that its cells are kept whole up to this length."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A table before it is laid out."""

    columns: Sequence[str]
    """Heads; `>` marks a column of numbers, whose cells stay on one line."""
    rows: Sequence[Sequence[Cell]]
    less: Sequence[str] = ()
    """Heads of the columns that are left out first, in this order."""

    def without(self, head: str) -> "Contents":
        at = _heads(self).index(head)
        rows = [[*row[:at], *row[at + 1 :]] for row in self.rows]
        return Contents([*self.columns[:at], *self.columns[at + 1 :]], rows, self.less)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are shown, and their widths."""

    contents: Contents
    widths: Sequence[int]
    left_out: Sequence[str]
    """Heads of the columns for which there is no room."""

    @property
    def width(self) -> int:
        return _total(self.widths)


def lay_out(contents: Contents, room: int) -> Layout:
    """Selects the columns that fit into `room` characters, and wraps cells where necessary."""
    left_out: list[str] = []
    for head in (head for head in contents.less if head in _heads(contents)):
        if _total(_least_widths(contents)) <= room:
            break
        contents = contents.without(head)
        left_out.append(head)
    return Layout(contents, _shrunk(contents, room), left_out)


def print_on(console: Console, layout: Layout) -> None:
    """Prints the table; if even the least widths exceed the window, the terminal wraps the
    lines."""
    console.width = max(console.width, layout.width)
    console.print(drawn(layout))


def drawn(layout: Layout) -> Table:
    """The table as `rich` draws it."""
    contents = layout.contents
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, width in zip(contents.columns, layout.widths, strict=True):
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"),
            justify="right" if right else "left",
            width=width,
            overflow="fold",
        )
    for row in contents.rows:
        table.add_row(*(_text(cell) for cell in row))
    return table


def _heads(contents: Contents) -> list[str]:
    return [column.removeprefix(">") for column in contents.columns]


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(shown_lines(cell))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1) + _EDGES


def _shrunk(contents: Contents, room: int) -> list[int]:
    """Starts with widths at which nothing wraps, and shrinks the widest column until all fit."""
    widths, least = _whole_widths(contents), _least_widths(contents)
    while _total(widths) > room:
        spare = [i for i, width in enumerate(widths) if width > least[i]]
        if not spare:
            break
        widths[max(spare, key=lambda i: widths[i])] -= 1
    return widths


def _whole_widths(contents: Contents) -> list[int]:
    heads = _heads(contents)
    return [
        max(len(head), *(_longest_line(row[i]) for row in contents.rows), 1)
        if contents.rows
        else len(head)
        for i, head in enumerate(heads)
    ]


def _least_widths(contents: Contents) -> list[int]:
    return [_least_width(contents, i) for i in range(len(contents.columns))]


def _least_width(contents: Contents, at: int) -> int:
    cells = [row[at] for row in contents.rows]
    column = contents.columns[at]
    head = max((len(word) for word in column.removeprefix(">").split()), default=1)
    if column.startswith(">"):
        return max(head, *(_longest_line(cell) for cell in cells)) if cells else head
    if at == 0:
        return max(head, min(_NAME, max((_longest_line(cell) for cell in cells), default=1)))
    longest = max((_longest_word(cell) for cell in cells), default=1)
    return max(head, min(_WORD, longest))


def _longest_line(cell: Cell) -> int:
    return max((line.cell_len for line in _text(cell).split("\n")), default=0)


def _longest_word(cell: Cell) -> int:
    return max((Text(word).cell_len for word in _text(cell).plain.split()), default=0)
