"""Words that the project no longer uses, in docstrings, help texts, messages, comments and documents.

Each rule says what to write instead. To allow a use, reword it: there is no list of exceptions but for pages
and messages for people who label photographs, which speak of pictures.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("src", "tools", "examples", "research")
PAGES = ("*.html", "*.js", "*.jinja", "*.toml")

PICTURES = (
    *("src/pathaware/serve/", "src/pathaware/cli/predict.py", "src/pathaware/cli/export.py"),
    *("src/pathaware/cli/learn.py", "src/pathaware/cli/options.py", "docs/photos.md"),
    *("src/pathaware/inference/class_folders.py", "src/pathaware/inference/predictions.py"),
    *("src/pathaware/inference/export/", "research/pathaware_research/benchmarks/serving.py"),
    *("README.md", "docs/predict.md", "docs/serving.md", "docs/export.md", "docs/own-data.md"),
)
"""Texts for people who label photographs, by the beginning of their path."""

COUNT = r"(?:one|two|three|four|five|ten|once|twice|\d[\d,.]*)"
MANY = r"(?:images|examples|queries|shots|classes|tasks|steps|points|iterations|ms|seconds|rows|files)"
UNIT = r"(?:file|task|class|step|row|run|image|iteration|meta-iteration|second|epoch|item|seed)"


@dataclass(frozen=True)
class Rule:
    """A word or pattern that is not used, and what to write instead."""

    pattern: str
    instead: str
    docstring_start: bool = False
    allowed: tuple[str, ...] = ()

    def found(self, text: str, *, docstring: bool) -> list[int]:
        """The positions in a text at which the rule is broken."""
        if self.docstring_start:
            return [0] if docstring and re.match(self.pattern, text.lstrip()) else []
        return [match.start() for match in re.finditer(rf"\b(?:{self.pattern})\b", text, re.IGNORECASE)]


RULES = (
    Rule(r"slopes?", "gradient"),
    Rule(r"nought", "zero"),
    Rule(r"judge[sd]?|judging", "evaluate"),
    Rule(r"(?:is|are) none of", "must be one of"),
    Rule(r"of one's own", "custom, or your own"),
    Rule(r"contestants?", "method, learner or implementation"),
    Rule(r"told(?! apart)", "given, called with, or reported"),
    Rule(r"strayed", "reverted"),
    Rule(r"to be had", "available"),
    Rule(r"go(?:es)? on with", "continue or resume"),
    Rule(r"pictures?", "image", allowed=PICTURES),
    Rule(rf"{COUNT}(?: {MANY})? an? {UNIT}(?!')", "per"),
    Rule(r"Of ", "a noun phrase: 'The … of …'", docstring_start=True),
    Rule(r"What ", "a noun phrase or a verb", docstring_start=True),
    Rule(r"Whether ", "'True if …' or 'Return whether …'", docstring_start=True),
)


@dataclass(frozen=True)
class Text:
    """A piece of English and the line on which it begins."""

    line: int
    words: str
    docstring: bool = False


def texts_of_python(source: str) -> Iterator[Text]:
    """Docstrings, other strings of more than one word (with 0 for values in f-strings), and comments."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            values = (part.value if isinstance(part, ast.Constant) else "0" for part in node.values)
            yield Text(node.lineno, "".join(map(str, values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield Text(node.lineno, node.value if " " in node.value else "", id(node) in docstrings)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string)


def texts_of_page(source: str) -> Iterator[Text]:
    """The lines of a page, without its code blocks and what stands in backticks."""
    code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield Text(number, re.sub(r"`[^`]*`", "`…`", line))


def broken_rules(path: str, source: str) -> list[str]:
    """Every use of a word that is not used, as `file:line: …`."""
    texts = texts_of_python(source) if path.endswith(".py") else texts_of_page(source)
    found = []
    for text in texts:
        for rule in RULES:
            if path.startswith(rule.allowed or "\0"):
                continue
            for position in rule.found(text.words, docstring=text.docstring):
                line = text.line + text.words[:position].count("\n")
                rest = " ".join(text.words[position:].split())[:50]
                found.append(f"{path}:{line}: “{rest}…”; write: {rule.instead}")
    return found


def check(paths: list[Path]) -> None:
    found = [
        line
        for path in sorted(paths)
        for line in broken_rules(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("folder", CODE)
def test_code_uses_the_words_of_the_field(folder):
    paths = [path for pattern in ("*.py", *PAGES) for path in (ROOT / folder).rglob(pattern)]
    assert paths
    check(paths)


def test_documents_use_the_words_of_the_field():
    check([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize(
    ("source", "instead"),
    [
        ('"""The slope of the loss."""', "gradient"),
        ("# mean nought", "zero"),
        ('raise ValueError(f"{name} is none of {known}")', "must be one of"),
        ('def f():\n    """Whether it is, as far as one can see."""', "True if"),
        ('X = 1\n"""Of whole numbers."""', "noun phrase"),
        ('"""What a run says."""', "noun phrase"),
        ('"""The methods, one a file."""', "per"),
        ('"""It takes 3 seconds a task."""', "per"),
        ('print(f"{count} images a class")', "per"),
        ('help = "Pictures to draw."', "image"),
        ('typer.echo("the note is told")', "given"),
    ],
)
def test_a_word_that_is_not_used_is_found_with_its_line(source, instead):
    (line,) = broken_rules("src/pathaware/core/path.py", source)
    assert line.startswith(f"src/pathaware/core/path.py:{source.count(chr(10)) + 1}: ")
    assert instead in line


def test_a_line_in_a_document_is_found_and_code_is_not():
    page = "# Title\n\n```python\nslope = 1\n```\n\nThe `slope` is the slope.\n"
    assert broken_rules("docs/page.md", page) == ["docs/page.md:7: “slope.…”; write: gradient"]


@pytest.mark.parametrize("source", ['"""One is a file."""', '{"contestants": 1}', '"""Pictures to label."""'])
def test_other_uses_are_left_alone(source):
    assert not broken_rules("src/pathaware/serve/page.py", source)
