"""docs/robustness.md names tests that exist, and says which of them are long."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/robustness.md"
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`( \(long\))?", PAGE.read_text(encoding="utf-8"))


def test_every_row_names_a_test():
    rows = re.findall(r"^\| (?!promise|---)(.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 15
    assert all("::test_" in row for row in rows)


@pytest.mark.parametrize(("file", "name", "long"), NAMED)
def test_a_named_test_exists(file: str, name: str, long: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(found) == 1, f"{file}::{name}"
    marks = [ast.unparse(mark) for mark in found[0].decorator_list]
    assert ("pytest.mark.slow" in marks) == bool(long)
