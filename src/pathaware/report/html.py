"""A report as one HTML file that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from pathaware.report.stylesheet import STYLE
from pathaware.report.tables.model import NOTHING, Remark, Row, Table


def page(title: str, lead: str, sections: Iterable[str]) -> str:
    under = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>\n<header><h1>{escape(title)}</h1>{under}</header>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def section(title: str, *content: str, anchor: str = "") -> str:
    name = f' id="{escape(anchor)}"' if anchor else ""
    return "\n".join([f"<section{name}><h2>{escape(title)}</h2>", *content, "</section>"])


def subsection(title: str, *content: str) -> str:
    return "\n".join([f"<section><h3>{escape(title)}</h3>", *content, "</section>"])


def contents(titles: Sequence[tuple[str, str]]) -> str:
    """Links to sections, by anchor and title."""
    items = (f'<li><a href="#{escape(anchor)}">{escape(title)}</a></li>' for anchor, title in titles)
    return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'


def table(content: Table) -> str:
    """The rows and the notes; the title is for the heading above. What is too wide can be scrolled."""
    head = "".join(
        f'<th scope="col"{_class(number=number)}>{escape(cell)}</th>'
        for cell, number in zip(content.header, content.numeric, strict=True)
    )
    bodies = "".join(
        f"<tbody>{''.join(_row(row, content.numeric) for row in group)}</tbody>" for group in content.groups
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in content.notes)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>{bodies}</table></div>{notes}'


def _row(row: Row, numeric: Sequence[bool]) -> str:
    cells = "".join(_cell(cell, number) for cell, number in zip(row.cells, numeric, strict=True))
    return f"<tr{_class(best=row.emphasis)}>{cells}</tr>"


def _cell(cell: str, number: bool) -> str:
    kind = _class(number=number, remark=isinstance(cell, Remark), nothing=cell == NOTHING)
    return f"<td{kind}>{escape(cell)}</td>"


def _class(**names: bool) -> str:
    given = " ".join(name for name, has in names.items() if has)
    return f' class="{given}"' if given else ""


def figure(uri: str, caption: str, *, broad: bool) -> str:
    """A picture with what it shows; a broad one has a line to itself."""
    words = escape(caption)
    return (
        f'<figure{_class(broad=broad)}><img src="{uri}" alt="{words}">'
        f"<figcaption>{words}</figcaption></figure>"
    )


def figures(drawn: Iterable[str]) -> str:
    return f'<div class="figures">{"".join(drawn)}</div>'


def folded(summary: str, text: str) -> str:
    """Text that is there for those who open it."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def link(address: str, words: str) -> str:
    return f'<a href="{escape(address)}">{escape(words)}</a>'
