"""How our HTML pages look: on a screen by day and by night, on a phone, and on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from pathaware.training.tables import NOTHING, Remark, Row, Table

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #222; --quiet: #666; --line: #e2e2e2; --rule: #444;
        --accent: #b84e00; --code: #f6f6f6; --edge: #e8e8e8; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #16181b; --ink: #e4e4e4; --quiet: #a0a4aa; --line: #33373c; --rule: #8a8f96;
          --accent: #ff9d5c; --code: #1f2226; --edge: #fff; }
}
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 66rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.8rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: break-word; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.8rem 0 .4rem; }
a { color: var(--accent); }
p.lead { color: var(--quiet); margin-top: 0; }
p.note, figcaption { color: var(--quiet); font-size: .88rem; margin: .4rem 0; max-width: 46rem; }
nav ul { padding-left: 1.2rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; border-top: 2px solid var(--rule); border-bottom: 2px solid var(--rule);
        font-variant-numeric: tabular-nums; font-size: .94rem; margin: .6rem 0; }
th, td { padding: .32rem 1.1rem; text-align: left; white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { padding-left: .15rem; position: sticky; left: 0; background: var(--paper); }
th:last-child, td:last-child { padding-right: .15rem; }
th { font-weight: 600; }
th.number, td.number { text-align: right; }
tbody { border-top: 1px solid var(--rule); }
tbody + tbody { border-top-color: var(--line); }
td.remark { color: var(--quiet); font-size: .85rem; font-style: italic; white-space: normal;
            min-width: 9rem; }
td.nothing { color: var(--quiet); }
tr.best td { color: var(--accent); font-weight: 600; }
div.figures { display: flex; flex-wrap: wrap; gap: 1.4rem; margin: 1.4rem 0; }
figure { margin: 0; flex: 1 1 26rem; min-width: 0; max-width: 40rem; }
figure.broad { flex-basis: 100%; max-width: none; }
figure img { display: block; width: 100%; height: auto; padding: .7rem; border-radius: 8px;
             background: #fff; border: 1px solid var(--edge); }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--quiet); }
pre { background: var(--code); padding: .9rem 1.1rem; overflow-x: auto; border-radius: 6px;
      font-size: .85rem; }
@media (max-width: 44rem) {
  body { margin: 1.2rem auto; padding: 0 .9rem; }
  th, td { padding: .3rem .6rem; }
  figure { flex-basis: 100%; }
  figure img { padding: .3rem; }
}
@media print {
  body { max-width: none; margin: 0; font-size: 10pt; }
  nav { display: none; }
  figure, tr, pre { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  div.wide { overflow: visible; }
  th, td { white-space: normal; padding: .2rem .5rem; }
}
"""


# A report as one HTML file that needs nothing but itself.


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
