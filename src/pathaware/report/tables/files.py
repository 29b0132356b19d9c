"""A table as files, in every form there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

from pathaware.report import html
from pathaware.report.tables.image import image
from pathaware.report.tables.latex import latex
from pathaware.report.tables.markdown import markdown
from pathaware.report.tables.model import Table

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
