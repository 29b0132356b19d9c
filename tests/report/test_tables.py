"""A table in Markdown, LaTeX and HTML."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pathaware.report.table_files import escaped, latex, render_html, write_table
from pathaware.training.tables import NOTHING, Remark, Row, Table, markdown, pipe_table
from pathaware_research.paper.method_table import render
from pathaware_research.paper.tables import steps_table, table1, table2, table3, table4
from pathaware_research.records import read_results

RESULTS = Path(__file__).parents[2] / "results"
MISSING = Remark("not run: data set is not imported")
TABLE = Table(
    "Q₀ & P¹: 100 % of θ",
    ("K", "method", "ours", "the paper"),
    [
        Row(("5", "a|b", "0.5643 ± 0.0160", "1.13 ± 0.18"), group="5"),
        Row(("5", "x_1 {y} #2", "70.51 ± 0.67", NOTHING), group="5", emphasis=True),
        Row(("10", "<script> & $5", MISSING, "0.77 ± 0.11"), group="10"),
    ],
    ["Means of 1,000 tasks; a cent is 1 % of $1."],
)


def test_a_row_must_have_as_many_cells_as_the_header():
    with pytest.raises(ValueError, match="does not fit"):
        Table.of("", ["one", "two"], [["alone"]])


@pytest.mark.parametrize(
    ("cells", "number"),
    [
        (["0.41 ± 0.04", NOTHING, "1,234"], True),
        (["1.23 %", "−5", "1.3e-06", "12 ×"], True),
        (["3.1", MISSING], True),
        (["49.78 ± 0.47 (joint)", "48.41 ± 0.52"], True),
        (["0.0259 (0.0238 to 0.0279)"], True),
        (["3 (45.98–46.73)"], False),
        ([MISSING], False),
        (["5-way", "1.0"], False),
        (["40,000 iterations"], False),
        (["0.1.0"], False),
    ],
)
def test_numeric_columns_are_detected_by_their_cells(cells, number):
    table = Table.of("", ["name", "value"], [["1", cell] for cell in cells])
    assert table.numeric == [False, number]


def test_markdown_lines_have_equally_many_cells_and_escaped_bars():
    lines = pipe_table(TABLE).splitlines()
    assert len(lines) == 2 + len(TABLE.rows)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(TABLE.header) + 1}
    assert r"a\|b" in lines[2]
    assert lines[1] == "| --- | --- | ---: | ---: |"
    assert "**70.51 ± 0.67**" in lines[3]
    assert markdown(TABLE).startswith(f"**{TABLE.title}**\n\n| K ")
    assert markdown(TABLE).endswith(TABLE.notes[0])


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("0.41 ± 0.04", r"0.41 $\pm$ 0.04"),
        ("Q₀", "$Q_{0}$"),
        ("P¹", "$P^{1}$"),
        ("θ₀ → θₙ", r"$\theta_{0}$ $\to$ $\theta_{n}$"),
        ("x₁²", "$x_{1}^{2}$"),
        ("10⁻³", "$10^{-3}$"),
        ("CO₂", "CO$_{2}$"),
        ("Φ", r"$\Phi$"),
        ("xᵦₙ", r"$x_{\beta n}$"),
        ("–", "--"),
        ("-0.5", "$-$0.5"),
        ("meta-sgd", "meta-sgd"),
        ("&%$#_{}", r"\&\%\$\#\_\{\}"),
        ("\\~^", r"\textbackslash{}\textasciitilde{}\textasciicircum{}"),
        ("[1]", "{[}1]"),
        ("|Q| < 1", "$|$Q$|$ $<$ 1"),
    ],
)
def test_latex_escapes_special_characters(text, written):
    assert escaped(text) == written


def test_latex_is_balanced_and_has_a_cell_per_column():
    source = latex(TABLE)
    opened, closed = (re.findall(rf"\\{word}{{(\w+)}}", source) for word in ("begin", "end"))
    assert opened == ["table", "tabular"]
    assert closed == opened[::-1]
    bare = re.sub(r"\\[{}]", "", source)
    assert bare.count("{") == bare.count("}")
    assert re.sub(r"\\\$", "", source).count("$") % 2 == 0
    assert r"\begin{tabular}{llrr}" in source
    rows = [line for line in source.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + len(TABLE.rows)
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(TABLE.header) - 1}
    assert source.count(r"\midrule") == 2  # under the header and between two groups
    assert r"\textbf{70.51 $\pm$ 0.67}" in source


def test_latex_of_our_own_tables_is_plain_ascii():
    results = read_results(RESULTS)
    for goal in (table1(), table2(), table3(), table4("cifar-fs"), steps_table("cifar-fs")):
        assert latex(render(goal, results)).isascii()


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "table.tex").write_text(f"{head}\n{latex(TABLE)}\n\\end{{document}}", encoding="utf-8")
    subprocess.run(["pdflatex", "-halt-on-error", "table.tex"], cwd=tmp_path, check=True, timeout=60)


def test_html_escapes_marks_and_groups():
    page = render_html(title=TABLE.title, single=TABLE)
    assert "&lt;script&gt; &amp; $5" in page
    assert "<script>" not in page
    assert page.count("<tbody>") == 2
    assert page.count('<tr class="best">') == 1
    assert f'<td class="number remark">{MISSING}</td>' in page
    assert f'<td class="number missing">{NOTHING}</td>' in page
    assert page.startswith("<!doctype html>")


def test_all_formats_are_written_and_equal_tables_are_equal_files(tmp_path):
    first, second = (write_table(TABLE, tmp_path / folder, "t") for folder in ("one", "two"))
    assert [path.name for path in first] == ["t.md", "t.tex", "t.html"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
