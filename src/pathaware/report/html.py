"""A report as one HTML file that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = """
:root { color-scheme: light; --ink: #222; --faint: #777; --line: #e4e4e4; --accent: #d55e00; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); max-width: 62rem; margin: 2.5rem auto;
       padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.lead { color: var(--faint); margin-top: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .8rem 0; }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left; }
th { font-weight: 600; } tr.best td { color: var(--accent); font-weight: 600; }
figure { margin: 1.4rem 0; } figure img { max-width: 100%; height: auto; }
figcaption { color: var(--faint); font-size: .92rem; }
pre { background: #f7f7f7; padding: .9rem 1.1rem; overflow-x: auto; border-radius: 6px; font-size: .85rem; }
"""


def page(title: str, lead: str, sections: Iterable[str]) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>\n<h1>{escape(title)}</h1>"
        f'<p class="lead">{escape(lead)}</p>\n' + "\n".join(sections) + "\n</body></html>\n"
    )


def section(title: str, *content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n" + "\n".join(content)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], best: int | None = None) -> str:
    """A table; row number `best` stands out."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = []
    for i, row in enumerate(rows):
        mark = ' class="best"' if i == best else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def figure(uri: str, caption: str) -> str:
    words = escape(caption)
    return f'<figure><img src="{uri}" alt="{words}"><figcaption>{words}</figcaption></figure>'


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
