"""Tables of text cells, and how they are written in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

NOTHING = "–"
"""The cell of a value that does not exist."""
_NUMBER = r"[<≈]? ?[-−+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?"
_QUANTITY = re.compile(rf"{_NUMBER}( ± {_NUMBER})?( ?[%×])?( \({_NUMBER} to {_NUMBER}\)| \([a-z]+\))?")


class Remark(str):
    """Words in place of a number, such as the reason why there is none."""


@dataclass(frozen=True)
class Row:
    """One row. A rule separates rows of different `group`; `emphasis` marks the best result."""

    cells: tuple[str, ...]
    group: str = ""
    emphasis: bool = False


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of as many cells as the header has, and notes below them."""

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
        """A table without groups, emphasis or notes."""
        return cls(title, tuple(header), [Row(tuple(line)) for line in cells])

    @property
    def groups(self) -> list[list[Row]]:
        """Consecutive rows of the same group."""
        return [list(rows) for _, rows in groupby(self.rows, key=lambda row: row.group)]

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds numbers and is aligned right. The first one names its row."""
        return [i > 0 and self._holds_numbers(i) for i in range(len(self.header))]

    def _repr_markdown_(self) -> str:
        """The table as Markdown, for notebooks."""
        return markdown(self)

    def _holds_numbers(self, column: int) -> bool:
        cells = [row.cells[column] for row in self.rows if not isinstance(row.cells[column], Remark)]
        return bool(cells) and all(cell in (NOTHING, "") or _QUANTITY.fullmatch(cell) for cell in cells)


def pipe_table(table: Table) -> str:
    """The header and the rows in Markdown, which has no rules between groups."""
    rules = ("---:" if number else "---" for number in table.numeric)
    lines = [_escaped(table.header), rules, *(_cells(row) for row in table.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def markdown(table: Table) -> str:
    """The whole table in Markdown, with its title and notes."""
    title = [f"**{table.title}**"] if table.title else []
    return "\n\n".join([*title, pipe_table(table), *table.notes])


def _cells(row: Row) -> Iterable[str]:
    cells = _escaped(row.cells)
    return (f"**{cell}**" if cell else "" for cell in cells) if row.emphasis else cells


def _escaped(cells: Iterable[str]) -> Iterable[str]:
    """Cells without bars and line breaks, which would end them."""
    return (" ".join(cell.replace("|", r"\|").split()) for cell in cells)
