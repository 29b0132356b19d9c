"""Tables of text cells, and their Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

NOTHING = "–"
_NUMBER = r"[<≈]? ?[-−+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?"
_QUANTITY = re.compile(rf"{_NUMBER}( ± {_NUMBER})?( ?[%×])?")


class Remark(str):
    """Words in the place of a number, such as the reason why there is none; set in grey."""


@dataclass(frozen=True)
class Row:
    """A row of cells. A rule separates groups; `emphasis` marks our best result."""

    cells: tuple[str, ...]
    group: str = ""
    emphasis: bool = False


@dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.header):
                raise ValueError(f"{row.cells} does not fit under {self.header}")

    @classmethod
    def of(cls, title: str, header: Iterable[str], cells: Iterable[Iterable[str]]) -> Table:
        """A table without groups, emphasis and notes."""
        return cls(title, tuple(header), [Row(tuple(line)) for line in cells])

    @property
    def groups(self) -> list[list[Row]]:
        return [list(rows) for _, rows in groupby(self.rows, key=lambda row: row.group)]

    @property
    def numeric(self) -> list[bool]:
        """True for each column of numbers, which are right-aligned. The first column names its row."""
        return [i > 0 and self._holds_numbers(i) for i in range(len(self.header))]

    def _holds_numbers(self, column: int) -> bool:
        cells = [row.cells[column] for row in self.rows if not isinstance(row.cells[column], Remark)]
        return bool(cells) and all(subdued(cell) or _QUANTITY.fullmatch(cell) for cell in cells)


def subdued(cell: str) -> bool:
    """True if the cell holds no result and is set in grey."""
    return isinstance(cell, Remark) or cell in (NOTHING, "")


def pipe_table(table: Table) -> str:
    """The table in Markdown without title and notes. Markdown has no rules between groups."""
    rules = ("---:" if number else "---" for number in table.numeric)
    lines = [_escaped(table.header), rules, *(_cells(row) for row in table.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def markdown(table: Table) -> str:
    """The table in Markdown with title and notes."""
    title = [f"**{table.title}**"] if table.title else []
    return "\n\n".join([*title, pipe_table(table), *table.notes])


def _cells(row: Row) -> Iterable[str]:
    cells = _escaped(row.cells)
    return (f"**{cell}**" if cell else "" for cell in cells) if row.emphasis else cells


def _escaped(cells: Iterable[str]) -> Iterable[str]:
    """Escape bars and join lines, which would end the cell."""
    return (" ".join(cell.replace("|", r"\|").split()) for cell in cells)
