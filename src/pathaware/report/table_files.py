"""Results as files: tables in Markdown, LaTeX and HTML (`report.html.jinja`), measurements in JSON."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import jinja2

from pathaware.core.writing import make_folder, replace_file
from pathaware.training.tables import NOTHING, Remark, Row, Table, markdown


def write_table(table: Table, folder: Path, name: str) -> list[Path]:
    """Write `name.md`, `name.tex` and `name.html`; return their paths."""
    make_folder(folder)
    texts = {
        "md": markdown(table) + "\n",
        "tex": latex(table),
        "html": render_html(title=table.title, single=table),
    }
    paths = [folder / f"{name}.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        replace_file(path, text, folder)
    return paths


def render_html(**content: Any) -> str:
    """A page that loads nothing from elsewhere; `report.html.jinja` shows which content it expects."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("pathaware.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.globals["cell_class"] = _cell_class
    return templates.get_template("report.html.jinja").render(content)


def _cell_class(cell: str, number: bool) -> str | None:
    classes = {"number": number, "remark": isinstance(cell, Remark), "missing": cell == NOTHING}
    return " ".join(name for name, applies in classes.items() if applies) or None


def latex(table: Table) -> str:
    """A `table` environment with its caption; the document needs `\\usepackage{booktabs}`."""
    blocks = "    \\midrule\n".join("".join(map(_line, group)) for group in table.groups)
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


def _line(row: Row) -> str:
    cells = [escaped(" ".join(cell.split())) for cell in row.cells]
    if row.emphasis:
        cells = [rf"\textbf{{{cell}}}" for cell in cells]
    return f"    {' & '.join(cells)} \\\\\n"


def _commands(pairs: str) -> dict[str, str]:
    """`"α alpha …"` → `{"α": "\\alpha", …}`"""
    words = pairs.split()
    return {sign: f"\\{name}" for sign, name in zip(words[::2], words[1::2], strict=True)}


_GREEK = _commands("""
    α alpha β beta γ gamma δ delta ε varepsilon ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu µ mu
    ν nu ξ xi π pi ρ rho σ sigma τ tau υ upsilon φ varphi χ chi ψ psi ω omega
    Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Φ Phi Ψ Psi Ω Omega
""")
_SIGNS = _commands("""
    ± pm × times · cdot → to ← leftarrow ≤ leq ≥ geq ≈ approx ≠ neq ∞ infty ‖ Vert ∇ nabla √ surd ∂ partial
    ∑ sum
""")
_MATH = {**_GREEK, **_SIGNS, "−": "-", "<": "<", ">": ">", "|": "|"}
_TEXT = {
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
    # At the beginning of a row, LaTeX would read these as arguments of the `\\` before them.
    "[": "{[}",
    "*": "{*}",
}


def _script(kind: str) -> dict[str, str]:
    """Every Unicode subscript (`sub`) or superscript (`super`) and its plain character: `₀` → `0`."""
    found = {}
    for code in range(0x80, 0x2E00):
        mark, _, plain = unicodedata.decomposition(chr(code)).partition(" ")
        if mark == f"<{kind}>" and " " not in plain:
            letter = chr(int(plain, 16))
            found[chr(code)] = f"{_GREEK[letter]} " if letter in _GREEK else _MATH.get(letter, letter)
    return found


_SUBSCRIPTS, _SUPERSCRIPTS = _script("sub"), _script("super")
_SMALL = "".join([*_SUBSCRIPTS, *_SUPERSCRIPTS])
_BASE = rf"(?:[{''.join(_GREEK)}]|\d+|(?<![A-Za-z])[A-Za-z])"
_FORMULA = re.compile(rf"{_BASE}?[{_SMALL}]+|[{re.escape(''.join(_MATH))}]|(?<![\w-])-(?=\d)")


def escaped(text: str) -> str:
    """Text for LaTeX, with symbols in math mode: `Q₀ ± 5 %` → `$Q_{0}$ $\\pm$ 5 \\%`."""
    parts, end = [], 0
    for found in _FORMULA.finditer(text):
        parts += [_plain(text[end : found.start()]), f"${_formula(found.group())}$"]
        end = found.end()
    return "".join([*parts, _plain(text[end:])])


def _plain(text: str) -> str:
    return "".join(_TEXT.get(c, c) for c in text)


def _formula(text: str) -> str:
    written = "".join(_MATH.get(c, c) for c in text.rstrip(_SMALL))
    for sign, small in (("_", _SUBSCRIPTS), ("^", _SUPERSCRIPTS)):
        marks = "".join(small[c] for c in text if c in small).strip()
        written += f"{sign}{{{marks}}}" if marks else ""
    return written
