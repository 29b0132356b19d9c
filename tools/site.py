"""MkDocs hooks: what the site makes at build time, so that no page needs a network or a script for it.

- Pages from files outside docs/: changelog, contributing, examples and the notebook.
- Mathematics (`$…$` on the pages of methods) as MathML.
- Links that leave docs/: to one of those pages, or as plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert as mathml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools import notebook_page

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples/first_steps.ipynb"
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples": "examples.md",
    "examples/first_steps.ipynb": "first-steps.md",
}
"""Pages of the site for files that are not in docs/."""

FOLDERS = {
    "changelog.md": "..",
    "contributing.md": "..",
    "examples.md": "../examples",
    "first-steps.md": "../examples",
}
"""Where the sources of those pages are, seen from docs/: their links start there."""

LONGEST_NAME, LONGEST_NUMBER = 16, 26
"""Characters of a cell that is not wrapped; those of numbers are aligned right."""

_kept: list[str] = []


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of all methods to the navigation."""
    (methods,) = [section["Methods"] for section in config.nav or [] if "Methods" in section]
    pages = {path: _heading(path) for path in (ROOT / "docs/methods").glob("*.md")}
    for path in sorted(pages, key=lambda path: pages[path].lower()):
        methods.append({pages[path]: f"methods/{path.name}"})
    return config


def _heading(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""
    page, images = notebook_page.convert(NOTEBOOK, _keep)
    pages: dict[str, str | bytes] = {
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
        "examples.md": examples_page(),
        "first-steps.md": page,
        **{f"images/{name}": content for name, content in images.items()},
    }
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def examples_page() -> str:
    """The scripts in examples/, whole."""
    parts = ["# Examples", "Short scripts to copy and change. Tests run each of them."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts += [f"## {path.name}", f"```python\n{path.read_text(encoding='utf-8').strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace links that leave docs/, and mathematics."""
    folder = posixpath.dirname(page.file.src_uri)
    markdown = re.sub(r"(?<!!)\[([^][]+)\]\(([^)\s]+)\)", lambda m: _link(m, page.file.src_uri), markdown)
    if folder == "methods":
        markdown = re.sub(r"\$\$(.+?)\$\$", lambda m: _keep(_math(m[1], "block")), markdown)
        markdown = re.sub(r"\$(?=[^ ])([^$\n]+?)\$", lambda m: _keep(_math(m[1], "inline")), markdown)
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Put what was kept in its place; keep numbers with their intervals, and short cells, on one line."""
    html = re.sub(r"(?<=\d) ± (?=\d)", "\u00a0±\u00a0", html)
    html = re.sub(r"<td([^>]*)>(.*?)</td>", _cell, html, flags=re.DOTALL)
    return re.sub(r"(<p>)?KEPT(\d+)KEPT(?(1)</p>)", lambda m: _kept[int(m[2])], html)


def _math(tex: str, display: str) -> str:
    """MathML, with spaces around functions without brackets: `b log s` must not read `blogs`."""
    space = '<mspace width="0.17em" />'
    return re.sub(
        r"<mi>(log|ln|det|cos|tanh)</mi>(?!<mo[^>]*>&#x00028;)",
        rf"{space}<mi>\1</mi>{space}",
        mathml(tex, display=display),
    )


def _cell(match: re.Match[str]) -> str:
    """A cell of a table, not wrapped if it holds a number or a short name, such as `meta-curvature`.

    Names such as `pathaware.core.rule` wrap after dots; a phone would break them in the middle of a word.
    """
    attributes = match[1]
    content = re.sub(r"<code>(\w+(?:\.\w+)+)</code>", _dotted, match[2])
    longest = LONGEST_NUMBER if "right" in attributes else LONGEST_NAME
    short = len(re.sub(r"<[^>]+>", "", content)) <= longest and "<math" not in content
    return f"<td{attributes}{' class=short' if short else ''}>{content}</td>"


def _dotted(match: re.Match[str]) -> str:
    return f"<code class=dotted>{match[1].replace('.', '.<wbr>')}</code>"


def _keep(html: str) -> str:
    """Set HTML aside, which Markdown would change, and return what stands for it."""
    _kept.append(html)
    return f"KEPT{len(_kept) - 1}KEPT"


def _link(match: re.Match[str], page: str) -> str:
    """A link of a page: unchanged within docs/, to a page of the site, or its text alone."""
    text, (target, _, anchor) = match[1], match[2].partition("#")
    folder = posixpath.dirname(page)
    if ":" in target or not target:
        return match[0]
    path = posixpath.normpath(posixpath.join("docs", FOLDERS.get(page, folder), target))
    if path.startswith("docs/"):
        found: str | None = path.removeprefix("docs/")
    else:
        found = PAGES.get(path) or PAGES.get(posixpath.dirname(path))
    if found is None:
        return text
    return f"[{text}]({posixpath.relpath(found, folder or '.')}{'#' if anchor else ''}{anchor})"
