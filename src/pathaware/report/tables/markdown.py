"""A table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from pathaware.report.tables.model import Row, Table


def pipe_table(table: Table) -> str:
    """The rows alone, for documents that have their own headings. Markdown knows no rule between groups."""
    rules = ("---:" if number else "---" for number in table.numeric)
    lines = [_escaped(table.header), rules, *(_cells(row) for row in table.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def markdown(table: Table) -> str:
    """With title and notes."""
    title = [f"**{table.title}**"] if table.title else []
    return "\n\n".join([*title, pipe_table(table), *table.notes])


def _cells(row: Row) -> Iterable[str]:
    cells = _escaped(row.cells)
    return (f"**{cell}**" if cell else "" for cell in cells) if row.emphasis else cells


def _escaped(cells: Iterable[str]) -> Iterable[str]:
    """A bar or a line break would end the cell."""
    return (" ".join(cell.replace("|", r"\|").split()) for cell in cells)
