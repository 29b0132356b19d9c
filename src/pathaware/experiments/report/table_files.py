"""Characters that LaTeX wants written in another way."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from pathaware.experiments.report import html
from pathaware.experiments.report.style import COLOURS, INK, QUIET
from pathaware.training.tables import Remark, Row, Table, markdown, subdued


def _commands(pairs: str) -> dict[str, str]:
    """`"α alpha …"` → `{"α": "\\alpha", …}`"""
    words = pairs.split()
    return {sign: f"\\{name}" for sign, name in zip(words[::2], words[1::2], strict=True)}


GREEK = _commands("""
    α alpha β beta γ gamma δ delta ε varepsilon ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu µ mu
    ν nu ξ xi π pi ρ rho σ sigma τ tau υ upsilon φ varphi χ chi ψ psi ω omega
    Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Φ Phi Ψ Psi Ω Omega
""")
_SIGNS = _commands("""
    ± pm × times · cdot → to ← leftarrow ≤ leq ≥ geq ≈ approx ≠ neq ∞ infty ‖ Vert ∇ nabla √ surd ∂ partial
    ∑ sum
""")
MATHS = {**GREEK, **_SIGNS, "−": "-", "<": "<", ">": ">", "|": "|"}
"""What is set in math mode."""

TEXT = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "’": "'",
    # After the end of a row these two would be read as options of that end.
    "[": "{[}",
    "*": "{*}",
}
"""What is not."""


def _script(kind: str) -> dict[str, str]:
    """Every small raised or lowered sign of Unicode and what it is small for: `₀` → `0`."""
    found = {}
    for code in range(0x80, 0x2E00):
        mark, _, plain = unicodedata.decomposition(chr(code)).partition(" ")
        if mark == f"<{kind}>" and " " not in plain:
            letter = chr(int(plain, 16))
            found[chr(code)] = f"{GREEK[letter]} " if letter in GREEK else MATHS.get(letter, letter)
    return found


LOWERED, RAISED = _script("sub"), _script("super")


# A table in LaTeX, as `booktabs` sets it.


_SMALL = "".join([*LOWERED, *RAISED])
_BASE = rf"(?:[{''.join(GREEK)}]|\d+|(?<![A-Za-z])[A-Za-z])"
_FORMULA = re.compile(rf"{_BASE}?[{_SMALL}]+|[{re.escape(''.join(MATHS))}]|(?<![\w-])-(?=\d)")


def latex(table: Table) -> str:
    """A `table` with its caption; the document needs `\\usepackage{booktabs}`."""
    blocks = "    \\midrule\n".join("".join(_line(row) for row in group) for group in table.groups)
    columns = "".join("r" if number else "l" for number in table.numeric)
    notes = "".join(
        f"  \\par\\smallskip\n  {{\\footnotesize {escaped(note)}\\par}}\n" for note in table.notes
    )
    return (
        "% \\usepackage{booktabs}\n\\begin{table}\n  \\centering\n"
        f"  \\caption{{{escaped(table.title)}}}\n  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n"
        f"{_line(Row(table.header))}    \\midrule\n{blocks}    \\bottomrule\n  \\end{{tabular}}\n"
        f"{notes}\\end{{table}}\n"
    )


def escaped(text: str) -> str:
    """Text as LaTeX prints it, with symbols in math mode: `Q₀ ± 5 %` → `$Q_{0}$ $\\pm$ 5 \\%`."""
    parts, end = [], 0
    for found in _FORMULA.finditer(text):
        parts += [_plain(text[end : found.start()]), f"${_formula(found.group())}$"]
        end = found.end()
    return "".join([*parts, _plain(text[end:])])


def _plain(text: str) -> str:
    return "".join(TEXT.get(c, c) for c in text)


def _formula(text: str) -> str:
    base = text.rstrip(_SMALL)
    written = "".join(MATHS.get(c, c) for c in base)
    for sign, small in (("_", LOWERED), ("^", RAISED)):
        marks = "".join(small[c] for c in text if c in small).strip()
        written += f"{sign}{{{marks}}}" if marks else ""
    return written


def _line(row: Row) -> str:
    cells = [escaped(" ".join(cell.split())) for cell in row.cells]
    if row.emphasis:
        cells = [rf"\textbf{{{cell}}}" for cell in cells]
    return f"    {' & '.join(cells)} \\\\\n"


# A table as a picture: thin rules, numbers aligned at their decimal points.


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


# A table as files, in every form there is.


# Letters as wide as they were measured, and the same file for the same table.
_DRAWN: Any = {"text.hinting": "none", "svg.hashsalt": "pathaware"}


def write_table(table: Table, folder: Path, name: str) -> list[Path]:
    """`name.md`, `.tex`, `.html`, `.png` and `.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "md": markdown(table) + "\n",
        "tex": latex(table),
        "html": html.page(table.title, "", [html.table(table)]),
    }
    for ending, text in texts.items():
        (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")
    with matplotlib.rc_context(_DRAWN):
        drawn = image(table)
        drawn.savefig(folder / f"{name}.png")
        drawn.savefig(folder / f"{name}.svg", metadata={"Date": None})
    return [folder / f"{name}.{ending}" for ending in (*texts, "png", "svg")]
