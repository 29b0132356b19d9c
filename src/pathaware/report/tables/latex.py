"""A table in LaTeX, as `booktabs` sets it."""

from __future__ import annotations

import re

from pathaware.report.tables.latex_symbols import GREEK, LOWERED, MATHS, RAISED, TEXT
from pathaware.report.tables.model import Row, Table

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
