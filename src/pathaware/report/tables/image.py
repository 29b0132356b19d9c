"""A table as a picture: thin rules, numbers aligned at their decimal points."""

from __future__ import annotations

import re
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from pathaware.report.style import COLOURS, INK, QUIET
from pathaware.report.tables.model import Remark, Row, Table, subdued

# Lengths are in points, as those of type are.
_LINE, _GAP, _MARGIN = 18.0, 22.0, 14.0
_TITLE, _BOLD = FontProperties(size=12, weight="bold"), FontProperties(size=10, weight="bold")
_PLAIN, _REMARK = FontProperties(size=10), FontProperties(size=8.5, style="italic")
_NOTE = FontProperties(size=8.5)


def image(table: Table) -> Figure:
    """As large as its text needs it."""
    lines = [Row(table.header, emphasis=True), *table.rows]
    columns = [_column(lines, i, number) for i, number in enumerate(table.numeric)]
    width = max(sum(wide for _, wide in columns) + _GAP * (len(columns) - 1), _width(table.title, _TITLE))
    notes = [line for note in table.notes for line in _wrapped(note, width)]
    top = 25.0 if table.title else 0.0
    foot = top + _LINE * len(lines)
    figure, axes = _canvas(width, foot + 6 + 13 * len(notes) if notes else foot)
    _write(axes, 0, 8, table.title, _TITLE, INK)
    for y, weight in ((top, 1.2), (top + _LINE, 0.7), (foot, 1.2)):
        _rule(axes, y, width, weight)
    for k, (before, row) in enumerate(pairwise(table.rows)):
        if before.group != row.group:
            _rule(axes, top + _LINE * (k + 2), width, 0.4)
    left = 0.0
    for i, (starts, wide) in enumerate(columns):
        for k, (start, row) in enumerate(zip(starts, lines, strict=True)):
            middle = top + _LINE * (k + 0.5)
            _write(axes, left + start, middle, row.cells[i], _font(row, i), _colour(row, i, head=not k))
        left += wide + _GAP
    for k, note in enumerate(notes):
        _write(axes, 0, foot + 14 + 13 * k, note, _NOTE, QUIET)
    return figure


def _column(lines: list[Row], column: int, number: bool) -> tuple[list[float], float]:
    """Where each cell begins, from the column's left edge, and how wide the column is.

    Numbers share a decimal point; the header, and remarks among numbers, end where the longest number does.
    """
    cells = [(row.cells[column], _font(row, column)) for row in lines]
    widths = [_width(*cell) for cell in cells]
    if not number:
        return [0.0] * len(cells), max(widths)
    points = {
        k: _width(_before_point(text), font)
        for k, (text, font) in enumerate(cells)
        if k > 0 and not subdued(text)
    }
    after = max((widths[k] - point for k, point in points.items()), default=0.0)
    wide = max(max(points.values(), default=0.0) + after, *widths)
    starts = [wide - after - points[k] if k in points else wide - w for k, w in enumerate(widths)]
    return starts, wide


def _before_point(text: str) -> str:
    found = re.match(r"[<≈]? ?[^. %×]*", text)
    return found.group() if found else ""


def _font(row: Row, column: int) -> FontProperties:
    return _REMARK if isinstance(row.cells[column], Remark) else _BOLD if row.emphasis else _PLAIN


def _colour(row: Row, column: int, *, head: bool) -> str:
    if subdued(row.cells[column]):
        return QUIET
    return COLOURS["pamela"] if row.emphasis and not head else INK


def _width(text: str, font: FontProperties) -> float:
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0])


def _wrapped(text: str, width: float) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if _width(longer, _NOTE) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure and its axes, in points from the upper left corner of what is inside the margins."""
    size = ((width + 2 * _MARGIN) / 72, (height + 2 * _MARGIN) / 72)
    figure = Figure(figsize=size, dpi=200)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-_MARGIN, width + _MARGIN), ylim=(height + _MARGIN, -_MARGIN))
    axes.set_axis_off()
    return figure, axes


def _write(axes: Axes, x: float, y: float, text: str, font: FontProperties, colour: str) -> None:
    """On a common base line: letters with tails must not lift their cell. A dollar sign is no mathematics."""
    axes.text(x, y + 0.36 * font.get_size_in_points(), text, font=font, color=colour, parse_math=False)


def _rule(axes: Axes, y: float, width: float, weight: float) -> None:
    axes.plot([0, width], [y, y], color=INK, linewidth=weight, solid_capstyle="butt")
